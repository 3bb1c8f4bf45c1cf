"""Ranks of a Slurm step: tasks that srun started, without PMI.

Rule: only SLURM_STEP_ID, SLURM_STEP_NUM_TASKS and SLURM_PROCID together mean a rank. The script of sbatch and the
shell of salloc have SLURM_NTASKS as well, and there is only one of them.
"""

from __future__ import annotations

from aiocoll.place.base import Environ, Place, meeting_url, rank_of, require, tcp_address, whole
from aiocoll.place.hostlist import hosts

PRIORITY = 40
_STEP = ("SLURM_STEP_ID", "SLURM_STEP_NUM_TASKS", "SLURM_PROCID")
_PORTS = range(15_000, 31_384)
"""Below those that Linux gives to outgoing connections."""
_STEPS_APART = 257
"""Steps of one job have ports of their own; jobs of neighbouring numbers that have few steps do, too."""


def find(environ: Environ) -> Place | None:
    """The place: on one host they meet on loopback, on several at the step's first host, where AIOCOLL_RDZV does not
    say otherwise."""
    if not all(environ.get(name, "").strip() for name in _STEP):
        return None
    rank, size = rank_of(environ, "SLURM_PROCID", "SLURM_STEP_NUM_TASKS")
    step = f"{environ.get('SLURM_JOB_ID', '').strip()}.{environ['SLURM_STEP_ID'].strip()}"
    return Place(
        rank=rank,
        size=size,
        local_rank=whole(environ, "SLURM_LOCALID"),
        job=environ.get("AIOCOLL_JOB_ID", "").strip() or f"slurm-{step}",
        init_method=(meeting_url(environ) or _head(environ, size)) if size > 1 else "",
        restart=whole(environ, "SLURM_RESTART_COUNT") or 0,
    )


def verdict(environ: Environ) -> str:
    """Which of a step's variables are there."""
    place = find(environ)
    if place is not None:
        where = place.init_method or "no address (a world of one)"
        return f"rank {place.rank} of {place.size} in {place.job}, meeting at {where}"
    missing = [name for name in _STEP if not environ.get(name, "").strip()]
    if environ.get("SLURM_JOB_ID", "").strip():
        return f"in a job, but no task of a step ({', '.join(missing)} not set): start the ranks with srun"
    return f"{', '.join(missing)} {'are' if len(missing) > 1 else 'is'} not set"


def _head(environ: Environ, size: int) -> str:
    needed = ("SLURM_JOB_ID", "SLURM_STEP_NODELIST")
    require(environ, needed, because=f"{size} tasks of a Slurm step need it to meet, or AIOCOLL_RDZV=host:port")
    names = hosts(environ["SLURM_STEP_NODELIST"], "SLURM_STEP_NODELIST")
    job, step = whole(environ, "SLURM_JOB_ID") or 0, whole(environ, "SLURM_STEP_ID") or 0
    port = _PORTS[(job * _STEPS_APART + step) % len(_PORTS)]
    return tcp_address("127.0.0.1" if len(names) == 1 else names[0], port)
