"""Which backends there are, and which of them work here.

The rule: a backend that cannot work says so before anything is joined, and names what to install.
"""

from __future__ import annotations

from typing import Any

from . import carriers
from .constants import Backend
from .refusals import RuntimeUsageError

_OWN = ("tcp", "shm", "auto")  # each is a transport of the same name


def backend_named(name: Any) -> Backend:
    """The backend of that name in any case; None is ``auto``. RuntimeError for a name that is none."""
    return Backend("auto" if name is None else name)


def transport_of(backend: Backend) -> str:
    """What ``connect(transport=)`` takes for this backend; RuntimeError where it cannot work here."""
    if backend in _OWN:
        return str(backend)
    reason = carriers.missing(backend)
    if reason:
        raise RuntimeUsageError(
            f"backend {str(backend)!r} is not available: {reason}; 'tcp', 'shm' and 'auto' work everywhere"
        )
    return "auto"


def is_backend_available(backend: str) -> bool:
    """Can ``init_process_group(backend)`` work in this installation?"""
    name = backend.lower()
    return name in _OWN or (carriers.carries(name) and not carriers.missing(name))


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


def is_ucc_available() -> bool:
    """Does the backend "ucc" work in this installation? Never: there is none."""
    return False


def is_xccl_available() -> bool:
    """Does the backend "xccl" work in this installation? Never: there is none."""
    return False
