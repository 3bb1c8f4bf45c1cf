"""The documented enumerations: backends, reductions and the group sentinels.

The rule: a constant has the documented name and value; what is not documented is not here.
"""

from __future__ import annotations

import enum

from .. import ops
from .refusals import RuntimeUsageError, TypeUsageError

_INITIALIZED_PG = 1
_INITIALIZED_MW = 2  # master-worker mode, which upstream removed: never set


class dist_backend:
    """The values of ``aiocoll.distributed._backend``."""

    UNDEFINED = -1
    TCP = 0
    MPI = 1
    GLOO = 2
    NCCL = 3
    SHM = 4
    AUTO = 5


class Backend(str):
    """A backend's name in lower case; ``Backend("TCP") == "tcp"``."""

    UNDEFINED = "undefined"
    TCP = "tcp"
    SHM = "shm"
    AUTO = "auto"
    MPI = "mpi"
    GLOO = "gloo"
    NCCL = "nccl"

    __slots__ = ()

    def __new__(cls, name: str) -> Backend:
        if not isinstance(name, str):
            raise TypeUsageError(f"a backend is named by a string, not by {type(name).__name__}")
        if name.lower() not in NUMBER_OF_BACKEND:
            known = ", ".join(NUMBER_OF_BACKEND)
            raise RuntimeUsageError(f"Invalid distributed backend name: {name}; the names are {known}")
        return super().__new__(cls, name.lower())


NUMBER_OF_BACKEND = {
    "tcp": dist_backend.TCP,
    "shm": dist_backend.SHM,
    "auto": dist_backend.AUTO,
    "mpi": dist_backend.MPI,
    "gloo": dist_backend.GLOO,
    "nccl": dist_backend.NCCL,
}


class ReduceOp(enum.Enum):
    """The reductions of today's API."""

    SUM = "sum"
    AVG = "avg"
    PRODUCT = "product"
    MIN = "min"
    MAX = "max"
    BAND = "band"
    BOR = "bor"
    BXOR = "bxor"

    __hash__ = object.__hash__  # members are singletons; Enum's own hash costs a call per collective


class reduce_op:
    """The reductions of the early API; the same objects as ReduceOp's."""

    SUM = ReduceOp.SUM
    PRODUCT = ReduceOp.PRODUCT
    MAX = ReduceOp.MAX
    MIN = ReduceOp.MIN


OP_OF = {
    ReduceOp.SUM: ops.SUM,
    ReduceOp.AVG: ops.MEAN,
    ReduceOp.PRODUCT: ops.PROD,
    ReduceOp.MIN: ops.MIN,
    ReduceOp.MAX: ops.MAX,
    ReduceOp.BAND: ops.BAND,
    ReduceOp.BOR: ops.BOR,
    ReduceOp.BXOR: ops.BXOR,
}


def op_of(op: object) -> ops.Op:
    """The reduction behind a documented constant; one of aiocoll's own (``aiocoll.op(fn)``) is taken as it is."""
    if isinstance(op, ReduceOp):
        return OP_OF[op]
    if isinstance(op, ops.Op):
        return op
    raise RuntimeUsageError(
        "op should be a constant from torch.distributed.reduce_op "
        f"(here: aiocoll.distributed.reduce_op or ReduceOp, or an aiocoll op), not {op!r}"
    )
