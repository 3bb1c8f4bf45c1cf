"""MPI's numbers and markers; the rule: values are those that mpi4py shows where a program could look at them.

A program should compare names, never numbers: MPI libraries differ in the numbers, too.
"""

from __future__ import annotations

from typing import Final

ANY_SOURCE: Final = -2
ANY_TAG: Final = -1
PROC_NULL: Final = -1
ROOT: Final = -3
UNDEFINED: Final = -32766
TAG_UB: Final = 1681915905
TAG_MAX: Final = (1 << 31) - 1
MAX_PROCESSOR_NAME: Final = 128
MAX_ERROR_STRING: Final = 512

IDENT: Final = 0
CONGRUENT: Final = 1
SIMILAR: Final = 2
UNEQUAL: Final = 3

CART: Final = 2
COMM_TYPE_SHARED: Final = 1
ORDER_C: Final = 56
ORDER_FORTRAN: Final = ORDER_C + 1
ORDER_F: Final = ORDER_FORTRAN

THREAD_SINGLE: Final = 0
THREAD_FUNNELED: Final = 1
THREAD_SERIALIZED: Final = 2
THREAD_MULTIPLE: Final = 3

SUCCESS: Final = 0
ERR_BUFFER: Final = 1
ERR_COUNT: Final = 2
ERR_TYPE: Final = 3
ERR_TAG: Final = 4
ERR_COMM: Final = 5
ERR_RANK: Final = 6
ERR_ROOT: Final = 7
ERR_GROUP: Final = 8
ERR_OP: Final = 9
ERR_TOPOLOGY: Final = 10
ERR_DIMS: Final = 11
ERR_ARG: Final = 12
ERR_UNKNOWN: Final = 13
ERR_TRUNCATE: Final = 14
ERR_OTHER: Final = 15
ERR_INTERN: Final = 16
ERR_IN_STATUS: Final = 17
ERR_PENDING: Final = 18
ERR_REQUEST: Final = 19
ERR_PROC_FAILED: Final = 101
ERR_REVOKED: Final = 103


class Marker:
    """A name that stands for itself in an argument."""

    __slots__ = ("_name",)

    def __init__(self, name: str) -> None:
        self._name = name

    def __repr__(self) -> str:
        return self._name

    def __bool__(self) -> bool:
        return not self._name.endswith("_NULL")

    def __reduce__(self) -> str:
        return self._name


IN_PLACE: Final = Marker("IN_PLACE")
INFO_NULL: Final = Marker("INFO_NULL")
ERRORS_RETURN: Final = Marker("ERRORS_RETURN")
ERRORS_ARE_FATAL: Final = Marker("ERRORS_ARE_FATAL")
