"""What each rank is started with: its command line and its environment.

Rule: a pure description. `describe` prints it without starting anything, and no secret is in it.
"""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Mapping
from dataclasses import dataclass

from aiocoll.cpus import usable_cpus
from aiocoll.errors import UsageError

BLAS_VARIABLES = (
    "OMP_NUM_THREADS",
    "OPENBLAS_NUM_THREADS",
    "MKL_NUM_THREADS",
    "BLIS_NUM_THREADS",
    "VECLIB_MAXIMUM_THREADS",
    "NUMEXPR_NUM_THREADS",
)
# Of the place, the secret and the store of another job around this one, nothing may reach the ranks.
_NOT_PASSED_ON = (
    "AIOCOLL_SECRET", "AIOCOLL_SECRET_FILE", "AIOCOLL_SECRET_FD", "AIOCOLL_ERROR_FD", "AIOCOLL_JOIN", "AIOCOLL_RDZV",
    "TORCHELASTIC_USE_AGENT_STORE", "TORCHELASTIC_ERROR_FILE",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Layout:
    """Where this runner's ranks stand in the job."""

    size: int
    ranks: int
    """How many of them are here."""
    first: int = 0
    node_rank: int = 0
    nnodes: int = 1
    job: str = ""
    rdzv: str = ""
    """``tcp://host:port`` of the store."""
    master: str = ""
    """host:port for torch's variables; nobody of ours listens there."""
    restart: int = 0
    """How often all ranks have been started again: those of one attempt meet."""
    replacement: int = 0
    """Which replacement it is, for a process in place of a rank that failed."""
    restarts_max: int = 0
    join: bool = False
    """Whether these ranks come to a world that others have formed."""


def command_line(kind: str, command: tuple[str, ...]) -> list[str]:
    """The argv of a rank; UsageError if there is nothing of that name to start.

    A script is started as ``python script`` itself, so argv, ``__main__`` and tracebacks are Python's own. What is no
    file but is found on the PATH (``aiocoll run python train.py``, as under mpirun) is a program.
    """
    name, *rest = command
    if kind == "module":
        return [*python_command(), "-m", name, *rest]
    if kind == "script":
        if name == "-" or os.path.exists(name):
            return [*python_command(), name, *rest]
        if os.sep in name or name.endswith(".py") or shutil.which(name) is None:
            raise UsageError(f"aiocoll run: no such script: {name!r} (in {os.getcwd()}); a module needs -m")
    found = shutil.which(name)
    if found is None:
        raise UsageError(f"aiocoll run: no such program: {name!r} (no executable file, and not on the PATH)")
    return [found, *rest]


def python_command() -> list[str]:
    """This interpreter, with the options that it was itself started with."""
    letters = {"optimize": "O", "dont_write_bytecode": "B", "no_user_site": "s", "safe_path": "P", "isolated": "I"}
    flags = ["-" + letter * getattr(sys.flags, name) for name, letter in letters.items() if getattr(sys.flags, name)]
    flags += [f"-W{option}" for option in sys.warnoptions]
    flags += [f"-X{name}" if value is True else f"-X{name}={value}" for name, value in sys._xoptions.items()]
    return [sys.executable, *flags]


def base_environment(environ: Mapping[str, str], extra: Mapping[str, str], ranks_here: int) -> dict[str, str]:
    """What all ranks share: the runner's own environment, a fair number of BLAS threads, unbuffered output."""
    env = {name: value for name, value in environ.items() if name not in _NOT_PASSED_ON}
    env.update(extra)
    # OMP_NUM_THREADS speaks for the more special ones too, so whoever set it has decided.
    if "OMP_NUM_THREADS" not in env:
        threads = str(max(1, usable_cpus() // ranks_here))
        for name in BLAS_VARIABLES:
            env.setdefault(name, threads)
    env.setdefault("PYTHONUNBUFFERED", "1")
    return env


def rank_environment(layout: Layout, local_rank: int) -> dict[str, str]:
    """The place of one rank, in our variables and in torch's."""
    rank = layout.first + local_rank
    host, _, port = layout.master.rpartition(":")
    restarts = layout.replacement or layout.restart
    both = {"RANK": rank, "WORLD_SIZE": layout.size, "LOCAL_RANK": local_rank, "LOCAL_WORLD_SIZE": layout.ranks,
            "NODE_RANK": layout.node_rank}  # fmt: skip
    ours = {
        **both, "NNODES": layout.nnodes, "JOB_ID": layout.job, "RDZV": layout.rdzv, "ATTEMPT": layout.restart,
        "RESTART_COUNT": restarts, "MASTER": layout.master,
    }  # fmt: skip
    torch = {
        **both, "GROUP_RANK": layout.node_rank, "GROUP_WORLD_SIZE": layout.nnodes, "ROLE_RANK": rank,
        "ROLE_WORLD_SIZE": layout.size, "ROLE_NAME": "default", "MASTER_ADDR": host.strip("[]"), "MASTER_PORT": port,
        "TORCHELASTIC_RUN_ID": layout.job, "TORCHELASTIC_RESTART_COUNT": restarts,
        "TORCHELASTIC_MAX_RESTARTS": layout.restarts_max,
    }  # fmt: skip
    ours |= {"JOIN": 1} if layout.join else {}
    return {f"AIOCOLL_{name}": str(value) for name, value in ours.items()} | {k: str(v) for k, v in torch.items()}


def describe(layout: Layout, argv: list[str], env: Mapping[str, str], environ: Mapping[str, str]) -> dict[str, object]:
    """The plan for people and programs: only variables that differ from ours are named, and no secret is shown."""
    ranks = []
    for local_rank in range(layout.ranks):
        whole = {**env, **rank_environment(layout, local_rank)}
        whole.update(AIOCOLL_SECRET_FD="<redacted>", AIOCOLL_ERROR_FD="<pipe>")  # noqa: S106  no secret is shown
        changed = {name: _shown(name, value) for name, value in sorted(whole.items()) if environ.get(name) != value}
        ranks.append({"rank": layout.first + local_rank, "argv": argv, "env": changed})
    return {"job": layout.job, "world_size": layout.size, "nnodes": layout.nnodes, "node_rank": layout.node_rank,
            "rdzv": layout.rdzv, "cwd": os.getcwd(), "ranks": ranks}  # fmt: skip


def _shown(name: str, value: str) -> str:
    words = ("SECRET", "TOKEN", "PASSWORD", "PASSWD", "CREDENTIAL", "API_KEY")
    return "<redacted>" if any(word in name.upper() for word in words) else value
