"""Which backends there are, and which of them work here.

The rule: a backend that cannot work says so before anything is joined, and names what to install.
"""

from __future__ import annotations

from typing import Any

from .constants import Backend
from .refusals import RuntimeUsageError

_WORKING = ("tcp", "shm", "auto")  # each is a transport of the same name
_EXTRA_OF = {"mpi": ("mpi", "mpi4py"), "gloo": ("torch", "PyTorch"), "nccl": ("torch", "PyTorch, and GPUs")}


def backend_named(name: Any) -> Backend:
    """The backend of that name in any case; None is ``auto``. RuntimeError for a name that is none."""
    return Backend("auto" if name is None else name)


def transport_of(backend: Backend) -> str:
    """What ``connect(transport=)`` takes for this backend; RuntimeError where it cannot work here."""
    if not is_backend_available(backend):
        extra, needs = _EXTRA_OF[backend]
        raise RuntimeUsageError(
            f"backend {str(backend)!r} is not available: it runs on {needs} (extra aiocoll[{extra}], installed by "
            f"pip install 'aiocoll[{extra}]'), and this release of aiocoll does not bring it yet; use 'tcp', 'shm' or "
            "'auto', which work everywhere"
        )
    return str(backend)


def is_backend_available(backend: str) -> bool:
    """Can ``init_process_group(backend)`` work in this installation?"""
    return backend.lower() in _WORKING


def is_available() -> bool:
    """Is distributed support there? Always: it needs nothing but sockets."""
    return True


def is_mpi_available() -> bool:
    """Does the backend "mpi" work in this installation?"""
    return is_backend_available("mpi")


def is_gloo_available() -> bool:
    """Does the backend "gloo" work in this installation?"""
    return is_backend_available("gloo")


def is_nccl_available() -> bool:
    """Does the backend "nccl" work in this installation?"""
    return is_backend_available("nccl")
