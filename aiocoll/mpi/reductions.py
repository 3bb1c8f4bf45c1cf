"""Op: MPI's reductions, on arrays (upper-case calls) and on any objects (lower-case calls).

The rule: arrays are folded by ``aiocoll.ops``; objects by Python's own operators, in rank order.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from functools import reduce
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .. import errors, ops
from .datatypes import Datatype
from .exceptions import OpError, UsageError, outside, translated
from .specs import reading, writing

Array = NDArray[Any]
Function = Callable[[Any, Any, Any], object]
"""Of (invec, inoutvec, datatype): two memoryviews and a Datatype, or two objects and None."""


class Op:
    """A reduction; ``op(x, y)`` folds two objects."""

    __slots__ = ("_commutative", "_function", "_kernel", "_name", "_objects")

    def __init__(
        self,
        name: str,
        objects: Callable[..., Any],
        kernel: ops.Op | None = None,
        function: Function | None = None,
        commutative: bool = True,
    ) -> None:
        """``objects`` folds two objects; ``kernel`` two arrays, or ``function`` what lies in two buffers."""
        self._name, self._objects, self._kernel, self._function = name, objects, kernel, function
        self._commutative = commutative

    @classmethod
    def Create(cls, function: Function, commute: bool = False) -> Op:
        """Makes one of ``function(invec, inoutvec, datatype)``, which folds the first into the second.

        Both are memory (``numpy.frombuffer(invec, dtype=...)``); ``invec`` comes from lower ranks. Unless ``commute``,
        ranks are folded in order.
        """
        if not callable(function):
            raise UsageError(f"Op.Create: {function!r} is no function of (invec, inoutvec, datatype)")
        name = getattr(function, "__name__", type(function).__name__)
        return cls(name, lambda x, y: function(x, y, None), None, function, bool(commute))

    def Free(self) -> None:
        """It is not used any more."""
        if self.is_predefined:
            raise OpError(f"Op.Free: MPI.{self._name} is MPI's own and cannot be freed")
        self._function = None

    free = Free

    @property
    def is_commutative(self) -> bool:
        """Whether ranks may be folded in any order."""
        return self._commutative

    @property
    def is_predefined(self) -> bool:
        """Whether this is one of MPI's own."""
        return _NAMED.get(self._name) is self

    def Is_commutative(self) -> bool:
        """Whether ranks may be folded in any order."""
        return self._commutative

    def Reduce_local(self, inbuf: Any, inoutbuf: Any) -> None:
        """Folds one buffer of this rank into another, without any other rank."""
        left, both = reading(inbuf, "Reduce_local", 0), writing(inoutbuf, "Reduce_local", 0)
        if left.flat.size != both.flat.size or left.flat.dtype != both.flat.dtype:
            raise UsageError(
                f"Reduce_local: {left.flat.size} elements of {left.flat.dtype} do not go into {both.flat.size} of "
                f"{both.flat.dtype}"
            )
        kernel = self.on_arrays(both.datatype, "Reduce_local")
        result = np.empty_like(both.flat)
        try:
            kernel.check(both.flat.dtype, 0, "Reduce_local")
            bound = kernel.bind(both.flat.shape, both.flat.dtype, what="Reduce_local")
            bound.fold(left.flat, both.flat, result)
        except errors.UsageError as error:
            raise translated(error) from error.__cause__
        bound.finish(result, 2)
        both.fill(result)

    def on_arrays(self, datatype: Datatype, where: str) -> ops.Op:
        """The fold of arrays that hold ``datatype``."""
        if self._kernel is not None:
            return self._kernel
        function = self._function
        if function is None:
            raise OpError(f"{where}: op {self!r} does not work on buffers (it was freed, or is MPI.OP_NULL)")

        def fold(left: Array, right: Array) -> Array:
            function(left.view(np.uint8).data, right.view(np.uint8).data, datatype)
            return right  # a copy, as all that an op of aiocoll gets

        fold.__name__ = self._name
        return ops.op(fold, self._commutative)

    def __call__(self, x: Any, y: Any) -> Any:
        return self._objects(x, y)

    def __bool__(self) -> bool:
        return self._name != "OP_NULL"

    def __getattr__(self, name: str) -> Any:
        raise outside("Op", name)

    def __repr__(self) -> str:
        return f"MPI.{self._name}" if self.is_predefined else f"Op({self._name})"


def _located(better: Callable[[Any, Any], Any]) -> ops.Op:
    def fold(left: Array, right: Array) -> Array:
        value, index = left.dtype.names or ("", "")
        if not index:
            raise UsageError(
                f"MINLOC and MAXLOC take pairs of value and index, not {left.dtype}: name a type such as "
                "[array, MPI.DOUBLE_INT], or send a structured array of two fields"
            )
        mine, theirs = left[value], right[value]
        take = better(theirs, mine) | ((theirs == mine) & (right[index] < left[index]))
        result: Array = np.where(take, right, left)
        return result

    return ops.op(fold)


def _pick(better: Callable[[Any, Any], Any]) -> Callable[[Any, Any], Any]:
    def fold(x: Any, y: Any) -> Any:
        (u, i), (v, j) = x, y
        if better(u, v):
            return u, i
        if better(v, u):
            return v, j
        return u, min(i, j)

    return fold


def _null(x: Any, y: Any) -> Any:
    raise OpError("MPI.OP_NULL folds nothing; name an op such as MPI.SUM")


SUM = Op("SUM", operator.add, ops.SUM)
PROD = Op("PROD", operator.mul, ops.PROD)
MAX = Op("MAX", lambda x, y: y if y > x else x, ops.MAX)
MIN = Op("MIN", lambda x, y: y if y < x else x, ops.MIN)
LAND = Op("LAND", lambda x, y: bool(x) & bool(y), ops.LAND)
LOR = Op("LOR", lambda x, y: bool(x) | bool(y), ops.LOR)
LXOR = Op("LXOR", lambda x, y: bool(x) ^ bool(y), ops.LXOR)
BAND = Op("BAND", operator.and_, ops.BAND)
BOR = Op("BOR", operator.or_, ops.BOR)
BXOR = Op("BXOR", operator.xor, ops.BXOR)
MAXLOC = Op("MAXLOC", _pick(operator.gt), _located(np.greater))
MINLOC = Op("MINLOC", _pick(operator.lt), _located(np.less))
OP_NULL = Op("OP_NULL", _null)

_NAMED = {each._name: each for each in (SUM, PROD, MAX, MIN, LAND, LOR, LXOR, BAND, BOR, BXOR, MAXLOC, MINLOC, OP_NULL)}


def kernel_of(op: Any, datatype: Datatype, where: str) -> ops.Op:
    """What folds arrays of ``datatype`` for an ``op=`` argument."""
    if isinstance(op, Op):
        return op.on_arrays(datatype, where)
    if isinstance(op, ops.Op):
        return op
    hint = "; wrap a function in MPI.Op.Create()" if callable(op) else ""
    raise OpError(f"{where}: op={op!r} is no MPI.Op{hint}")


def folded(op: Any, objects: Sequence[Any], where: str) -> Any:
    """Objects in rank order, folded by an Op or any function of two."""
    if not callable(op):
        raise OpError(f"{where}: op={op!r} is neither an MPI.Op nor a function of two objects")
    return reduce(op, objects)
