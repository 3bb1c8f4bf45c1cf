"""The documented enumerations: backends, reductions and the group sentinels.

The rule: a constant has the documented name and value; what is not documented is not here.
"""

from __future__ import annotations

import enum
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

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

    @classmethod
    def register_backend(
        cls, name: str, func: Callable[..., Any], extended_api: bool = False, devices: str | list[str] | None = None
    ) -> None:
        """Registers a backend of the program's own, for ``init_process_group(name)``.

        Arguments:
            name: Its name, in any case; becomes an attribute of Backend too.
            func: ``func(store, rank, world_size, timeout)`` gives what moves the arrays of collectives: an object with
                the methods of ``aiocoll.distributed.carriers.base.Library``. ``store`` is what init_process_group got.
            extended_api, devices: Accepted for code written for torch; nothing here depends on them.
        """
        if not isinstance(name, str) or not callable(func):
            raise TypeUsageError("Backend.register_backend: a name (str) and a function are needed")
        if name.lower() in NUMBER_OF_BACKEND:
            raise RuntimeUsageError(f"Backend.register_backend: {name.lower()!r} is already there")
        PLUGINS[name.lower()] = func
        NUMBER_OF_BACKEND[name.lower()] = dist_backend.UNDEFINED
        setattr(cls, name.upper(), name.lower())


PLUGINS: dict[str, Callable[..., Any]] = {}
"""Backends that programs have registered, by name."""
NUMBER_OF_BACKEND = {
    "tcp": dist_backend.TCP,
    "shm": dist_backend.SHM,
    "auto": dist_backend.AUTO,
    "mpi": dist_backend.MPI,
    "gloo": dist_backend.GLOO,
    "nccl": dist_backend.NCCL,
}


class ReduceOp(enum.Enum):
    """The reductions of today's API.

    ``ReduceOp.PREMUL_SUM(factor)`` is the sum of what each rank has multiplied by its factor, a number or an array of
    one element.
    """

    RedOpType: ClassVar[type[ReduceOp]]

    SUM = 0
    AVG = 1
    PRODUCT = 2
    MIN = 3
    MAX = 4
    BAND = 5
    BOR = 6
    BXOR = 7
    PREMUL_SUM = 8

    if TYPE_CHECKING:

        def __hash__(self) -> int: ...

    else:
        __hash__ = object.__hash__  # members are singletons; Enum's own hash costs a call per collective

    def __call__(self, factor: Any) -> PremulSum:
        if self is not ReduceOp.PREMUL_SUM:
            raise TypeUsageError(f"{self} takes no factor; ReduceOp.PREMUL_SUM(factor) does")
        return PremulSum(factor)


ReduceOp.RedOpType = ReduceOp  # where torch keeps the same members


class reduce_op:
    """The reductions under the early API's name; the same objects as ReduceOp's."""

    SUM = ReduceOp.SUM
    PRODUCT = ReduceOp.PRODUCT
    MAX = ReduceOp.MAX
    MIN = ReduceOp.MIN
    AVG = ReduceOp.AVG
    BAND = ReduceOp.BAND
    BOR = ReduceOp.BOR
    BXOR = ReduceOp.BXOR
    PREMUL_SUM = ReduceOp.PREMUL_SUM


@dataclass(frozen=True, slots=True, eq=False)
class PremulSum:
    """SUM of inputs that each rank multiplies by its ``factor``; other ranks may have other factors."""

    factor: Any
    op: ReduceOp = ReduceOp.PREMUL_SUM

    def __post_init__(self) -> None:
        number = isinstance(self.factor, bool | int | float | complex) or hasattr(self.factor, "shape")
        if not number or np.asarray(self.factor).size != 1:
            raise TypeUsageError(
                f"ReduceOp.PREMUL_SUM(factor): a number or a tensor of one element, not {type(self.factor).__name__}"
            )

    def scaled(self, array: Any, what: str, rank: int) -> Any:
        """``array`` times the factor, a new array of the same dtype."""
        dtype = array.dtype.newbyteorder("=")
        given = np.asarray(self.factor).reshape(())
        try:
            with np.errstate(all="ignore"):
                if given.dtype.kind != "c" or dtype.kind == "c":
                    factor = given.astype(dtype)
                    if dtype.kind not in "biu" or factor == given:
                        return np.multiply(array, factor, dtype=dtype)
        except (TypeError, ValueError):
            pass  # a dtype that knows no products, or no such number
        raise RuntimeUsageError(
            f"{what} on rank {rank}: PREMUL_SUM by {given} does not work on dtype {array.dtype}: the products would "
            "not be of that dtype; convert the tensor first"
        )


def _make_nccl_premul_sum(factor: Any) -> PremulSum:
    """``ReduceOp.PREMUL_SUM(factor)``, as GPU code spells it."""
    return PremulSum(factor)


OP_OF: dict[ReduceOp, ops.Op] = {
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
    """The reduction behind a documented constant; one of aiocoll's own (``aiocoll.op(fn)``) is taken as it is, and
    torch's constants by their names."""
    op = _ours(op)
    if isinstance(op, ReduceOp):
        if op is ReduceOp.PREMUL_SUM:
            raise RuntimeUsageError("ReduceOp.PREMUL_SUM needs its factor: pass ReduceOp.PREMUL_SUM(factor)")
        return OP_OF[op]
    if isinstance(op, ops.Op):
        return op
    if isinstance(op, PremulSum):
        return ops.PREMUL_SUM
    raise RuntimeUsageError(
        "op should be a constant from torch.distributed.reduce_op "
        f"(here: aiocoll.distributed.reduce_op or ReduceOp, or an aiocoll op), not {op!r}"
    )


def prepared(op: object, array: Any, what: str, rank: int) -> Any:
    """What a rank puts into a reduction: ``array`` itself, or what its factor makes of it."""
    op = _ours(op)
    return op.scaled(array, what, rank) if isinstance(op, PremulSum) else array


def _ours(op: object) -> object:
    """What a constant of torch itself is here; anything else as it is. Nobody has to import torch to ask."""
    kind = type(op)
    if kind is ReduceOp or not str(kind.__module__).startswith("torch."):
        return op
    named = getattr(op, "op", op)  # a ReduceOp that has been made holds its constant, and perhaps a factor
    ours = ReduceOp.__members__.get(str(getattr(named, "name", "")))
    if ours is ReduceOp.PREMUL_SUM and named is not op:
        return PremulSum(getattr(op, "factor", None))
    return op if ours is None else ours
