"""Ranks of a launcher that speaks PMI-1: MPICH's mpiexec, ``srun --mpi=pmi2``, Flux.

Rule: the launcher itself tells the ranks where to meet, over the descriptor PMI_FD, which this file only names; the
talking is ``rendezvous/schemes/pmi.py``'s.
"""

from __future__ import annotations

from aiocoll.place.base import Environ, Place, meeting_url, rank_of, require, whole

PRIORITY = 20
_NEEDED = ("PMI_RANK", "PMI_SIZE")


def find(environ: Environ) -> Place | None:
    """The place; AIOCOLL_RDZV, where it is set, is where they meet, and PMI is not asked."""
    if not any(environ.get(name, "").strip() for name in (*_NEEDED, "PMI_FD")):
        return None
    require(environ, _NEEDED, because="another variable of PMI is")
    rank, size = rank_of(environ, *_NEEDED)
    url = meeting_url(environ) if size > 1 else ""
    if size > 1 and not url:
        require(
            environ,
            (*_NEEDED, "PMI_FD"),
            because=f"{size} ranks need it to meet (the launcher gives it to the ranks, not to processes that those "
            f"start; without PMI-1, AIOCOLL_RDZV=host:port says where)",
        )
        whole(environ, "PMI_FD")
        url = "pmi://"
    return Place(
        rank=rank,
        size=size,
        local_rank=whole(environ, "MPI_LOCALRANKID"),
        local_size=whole(environ, "MPI_LOCALNRANKS", least=1),
        job=environ.get("AIOCOLL_JOB_ID", "").strip() or environ.get("PMI_JOBID", "").strip(),
        init_method=url,
    )


def verdict(environ: Environ) -> str:
    """Which of PMI's variables are there."""
    place = find(environ)
    if place is None:
        return "PMI_RANK, PMI_SIZE and PMI_FD are not set"
    if place.size == 1:
        return "the only rank, a world of one"
    by_pmi = place.init_method == "pmi://"
    where = f"through PMI_FD={environ['PMI_FD'].strip()}" if by_pmi else f"at {place.init_method}"
    return f"rank {place.rank} of {place.size}, meeting {where}"
