"""Ranks of Open MPI's mpiexec, and of PRRTE's prterun.

Rule: ranks of one host meet through the launcher's session directory; those of several are told an address by
AIOCOLL_RDZV or MASTER_ADDR, since what Open MPI itself would tell them takes its own library to hear.
"""

from __future__ import annotations

import re

from aiocoll.errors import UsageError
from aiocoll.place.base import Environ, Place, meeting_url, port_of, rank_of, require, tcp_address, whole

PRIORITY = 30
_NEEDED = ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE")
_MASTER = ("MASTER_ADDR", "MASTER_PORT")


def find(environ: Environ) -> Place | None:
    """The place; UsageError for ranks on several hosts that nobody has told an address."""
    if not any(environ.get(name, "").strip() for name in _NEEDED):
        return None
    require(environ, _NEEDED, because="the other half of the place is")
    rank, size = rank_of(environ, *_NEEDED)
    namespace = environ.get("PMIX_NAMESPACE", "").strip()
    return Place(
        rank=rank,
        size=size,
        local_rank=whole(environ, "OMPI_COMM_WORLD_LOCAL_RANK"),
        local_size=whole(environ, "OMPI_COMM_WORLD_LOCAL_SIZE", least=1),
        job=environ.get("AIOCOLL_JOB_ID", "").strip() or namespace,
        init_method=_where(environ, size, namespace) if size > 1 else "",
    )


def verdict(environ: Environ) -> str:
    """Which of Open MPI's variables are there."""
    place = find(environ)
    if place is None:
        return "OMPI_COMM_WORLD_RANK and OMPI_COMM_WORLD_SIZE are not set"
    return f"rank {place.rank} of {place.size}, meeting at {place.init_method or 'no address (a world of one)'}"


def _where(environ: Environ, size: int, namespace: str) -> str:
    if url := meeting_url(environ):
        return url
    if any(environ.get(name, "").strip() for name in _MASTER):
        require(environ, _MASTER, because="the other half of the address is")
        return tcp_address(environ["MASTER_ADDR"].strip(), port_of(environ, "MASTER_PORT"))
    near = whole(environ, "OMPI_COMM_WORLD_LOCAL_SIZE", least=1)
    advice = (
        "set AIOCOLL_RDZV=host:port, a free port of rank 0's host, and for several hosts AIOCOLL_SECRET or "
        "AIOCOLL_SECRET_FILE too (mpiexec -x NAME passes them on)"
    )
    if near != size:
        here = "an unknown number" if near is None else str(near)
        raise UsageError(
            f"OMPI_COMM_WORLD_SIZE={size}, of which {here} on this host (OMPI_COMM_WORLD_LOCAL_SIZE): nothing says "
            f"where ranks on several hosts meet; {advice}"
        )
    directory = environ.get("PMIX_SERVER_TMPDIR", "").strip()
    if not directory.startswith("/"):
        raise UsageError(
            f"PMIX_SERVER_TMPDIR is not set, but {size} ranks of Open MPI need its session directory to meet; {advice}"
        )
    return f"session://{directory.rstrip('/')}/aiocoll-{re.sub('[^A-Za-z0-9@._-]', '_', namespace) or 'job'}"
