"""mpi4py's names over aiocoll: ``from aiocoll.mpi import MPI`` where a program says ``from mpi4py import MPI``.

Programs that use COMM_WORLD with buffers, objects, requests, reductions, split communicators and grids run unchanged
otherwise, started by ``aiocoll run`` or alone; what mpi4py has beyond that raises an error that names a way.

The rule: names are mpi4py's, behaviour is that of aiocoll's blocking group; this room adds neither a transport nor an
algorithm.

- ``world``: COMM_WORLD, COMM_SELF; ``communicators``: Comm, Intracomm; ``topology``: Cartcomm; ``groups``: Group
- ``messages``: Send to Improbe, over ``seen``; ``requests``: Request; ``persistent``: Prequest; ``status``: Status
- ``collectives`` on buffers, their ``plans``, and ``objects``: the lower-case ones; ``reductions``: Op
- ``specs``: buffer specifications; ``datatypes``: Datatype
- ``calling``: how a call is made; ``exceptions``: MPI.Exception; ``constants``; ``outside``: what is not here
"""

from __future__ import annotations

import platform
import sys
import time
from types import ModuleType
from typing import Any, Final

from . import datatypes as _datatypes
from .communicators import Comm, Intracomm
from .constants import (
    ANY_SOURCE,
    ANY_TAG,
    CART,
    COMM_TYPE_SHARED,
    CONGRUENT,
    ERR_ARG,
    ERR_BUFFER,
    ERR_COMM,
    ERR_COUNT,
    ERR_DIMS,
    ERR_GROUP,
    ERR_IN_STATUS,
    ERR_INTERN,
    ERR_OP,
    ERR_OTHER,
    ERR_PENDING,
    ERR_PROC_FAILED,
    ERR_RANK,
    ERR_REQUEST,
    ERR_REVOKED,
    ERR_ROOT,
    ERR_TAG,
    ERR_TOPOLOGY,
    ERR_TRUNCATE,
    ERR_TYPE,
    ERR_UNKNOWN,
    ERRORS_ARE_FATAL,
    ERRORS_RETURN,
    IDENT,
    IN_PLACE,
    INFO_NULL,
    MAX_ERROR_STRING,
    MAX_PROCESSOR_NAME,
    ORDER_C,
    ORDER_F,
    ORDER_FORTRAN,
    PROC_NULL,
    ROOT,
    SIMILAR,
    SUCCESS,
    TAG_UB,
    THREAD_FUNNELED,
    THREAD_MULTIPLE,
    THREAD_SERIALIZED,
    THREAD_SINGLE,
    UNDEFINED,
    UNEQUAL,
)
from .datatypes import DATATYPE_NULL, Datatype
from .exceptions import Exception, outside
from .groups import Group
from .persistent import Prequest
from .reductions import (
    BAND,
    BOR,
    BXOR,
    LAND,
    LOR,
    LXOR,
    MAX,
    MAXLOC,
    MIN,
    MINLOC,
    OP_NULL,
    PROD,
    SUM,
    Op,
)
from .requests import MESSAGE_NULL, REQUEST_NULL, Request
from .requests import MatchedMessage as Message
from .status import Status
from .topology import Cartcomm, Compute_dims
from .world import NULL as COMM_NULL
from .world import SELF as COMM_SELF
from .world import WORLD as COMM_WORLD
from .world import (
    Finalize,
    Init,
    Init_thread,
    Is_finalized,
    Is_initialized,
    Is_thread_main,
    Query_thread,
)

__all__ = [
    "ANY_SOURCE",
    "ANY_TAG",
    "BAND",
    "BSEND_OVERHEAD",
    "BOR",
    "BXOR",
    "CART",
    "COMM_NULL",
    "COMM_SELF",
    "COMM_TYPE_SHARED",
    "COMM_WORLD",
    "CONGRUENT",
    "Attach_buffer",
    "Cartcomm",
    "Comm",
    "Compute_dims",
    "DATATYPE_NULL",
    "Datatype",
    "ERRORS_ARE_FATAL",
    "ERRORS_RETURN",
    "ERR_ARG",
    "ERR_BUFFER",
    "ERR_COMM",
    "ERR_COUNT",
    "ERR_DIMS",
    "ERR_GROUP",
    "ERR_INTERN",
    "ERR_IN_STATUS",
    "ERR_OP",
    "ERR_OTHER",
    "ERR_PENDING",
    "ERR_PROC_FAILED",
    "ERR_RANK",
    "ERR_REQUEST",
    "ERR_REVOKED",
    "ERR_ROOT",
    "ERR_TAG",
    "ERR_TOPOLOGY",
    "ERR_TRUNCATE",
    "ERR_TYPE",
    "ERR_UNKNOWN",
    "Exception",
    "Detach_buffer",
    "Finalize",
    "Get_error_class",
    "Get_error_string",
    "Get_library_version",
    "Get_processor_name",
    "Get_version",
    "GROUP_EMPTY",
    "MESSAGE_NO_PROC",
    "MESSAGE_NULL",
    "Group",
    "IDENT",
    "INFO_NULL",
    "IN_PLACE",
    "Init",
    "Init_thread",
    "Intracomm",
    "Is_finalized",
    "Is_initialized",
    "Is_thread_main",
    "LAND",
    "LOR",
    "LXOR",
    "MAX",
    "MAXLOC",
    "MAX_ERROR_STRING",
    "MAX_PROCESSOR_NAME",
    "MIN",
    "MINLOC",
    "MPI",
    "Message",
    "OP_NULL",
    "ORDER_C",
    "ORDER_F",
    "ORDER_FORTRAN",
    "Op",
    "PROC_NULL",
    "PROD",
    "Prequest",
    "Query_thread",
    "REQUEST_NULL",
    "ROOT",
    "Request",
    "SIMILAR",
    "SUBVERSION",
    "SUCCESS",
    "SUM",
    "Status",
    "TAG_UB",
    "THREAD_FUNNELED",
    "THREAD_MULTIPLE",
    "THREAD_SERIALIZED",
    "THREAD_SINGLE",
    "UNDEFINED",
    "UNEQUAL",
    "VERSION",
    "Wtick",
    "Wtime",
    "get_vendor",
]

VERSION: Final = 3
SUBVERSION: Final = 1
BSEND_OVERHEAD: Final = 0
"""What a message takes in an attached buffer beside itself: Bsend uses none."""

MPI: ModuleType = sys.modules[__name__]
"""This module, so that ``from aiocoll.mpi import MPI`` reads like mpi4py's line."""


GROUP_EMPTY: Final = Group((), 0)
MESSAGE_NO_PROC: Final = MESSAGE_NULL
_buffers: list[Any] = []


def Attach_buffer(buf: Any) -> None:
    """For Bsend, which here needs no buffer: it is only kept for Detach_buffer."""
    _buffers[:] = [buf]


def Detach_buffer() -> Any:
    """Gives back what Attach_buffer got."""
    return _buffers.pop() if _buffers else None


def Get_error_class(errorcode: int) -> int:
    """The same number: here codes are classes."""
    return errorcode


def Get_error_string(errorcode: int) -> str:
    """The name of an ERR_ constant."""
    names = [name for name, value in globals().items() if name.startswith("ERR_") and value == errorcode]
    return f"MPI_{names[0]}" if names else "MPI_SUCCESS" if errorcode == SUCCESS else f"error {errorcode}"


def Wtime() -> float:
    """Seconds from some moment on; only differences mean anything, and only on one rank."""
    return time.perf_counter()


def Wtick() -> float:
    """The resolution of Wtime in seconds."""
    return time.get_clock_info("perf_counter").resolution


def Get_processor_name() -> str:
    """This host's name."""
    return platform.node()


def Get_version() -> tuple[int, int]:
    """The version of the MPI standard whose names these are."""
    return VERSION, SUBVERSION


def Get_library_version() -> str:
    """What works behind the names."""
    from .. import __version__

    return f"aiocoll {__version__}"


def get_vendor() -> tuple[str, tuple[int, ...]]:
    """The same as a name and a version."""
    from .. import __version__

    return "aiocoll", tuple(int(each) for each in __version__.split(".") if each.isdigit())


def __getattr__(name: str) -> Any:
    """Datatypes by name; a pointer for what is mpi4py's and not here."""
    found = _datatypes.PREDEFINED.get(name)
    if found is not None:
        return found
    raise outside(__name__, name)


def __dir__() -> list[str]:
    return sorted({*globals(), *_datatypes.PREDEFINED})
