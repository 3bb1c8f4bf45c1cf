"""The reductions of a group: reduce, all_reduce, reduce_scatter, scan, exscan.

The rule: inputs are never touched; the algorithm works on a private flat copy in the op's work dtype, which is the
result's own memory where the dtypes allow it.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Unpack, overload

import numpy as np
from numpy.typing import NDArray

from .. import observe, patterns
from ..algorithms import pace
from ..buffers import as_array, as_out, check_out, native
from ..buffers.narrow import is_narrow
from ..endpoint import Channel
from ..errors import UsageError
from ..ops import SUM, Mean, Op, as_op, finish_pieces
from .calls import Again, Calls
from .cuts import cut_of, fresh, readable
from .posted import Posted
from .typed import Blocks, Dtype, Inexact, Limits, Out
from .workspace import Input, Plan, deliver, home_of, loaded

Array = NDArray[Any]


def _repeats(op: Op) -> bool:
    """Whether calls with this op may be kept ready: nothing is left to do after the fold, which minds no shape."""
    return not op.finishes and op.function is None


async def _finish(ch: Channel, op: Op, work: Array, size: int) -> None:
    """The op's last step, in slices."""
    if op.finishes and op.work_dtype(work.dtype) == work.dtype:  # narrow floats are finished where they are folded
        for _ in finish_pieces(op, work, size):
            await ch.breathe()


class Reductions(Calls):
    """See API: reductions."""

    @overload
    def all_reduce(
        self, x: NDArray[Inexact], op: Op | str = SUM, out: None = None, **limits: Unpack[Limits]
    ) -> Posted[NDArray[Inexact]]: ...
    @overload
    def all_reduce(self, x: Any, op: Mean, out: None = None, **limits: Unpack[Limits]) -> Posted[Any]: ...
    @overload
    def all_reduce(
        self, x: NDArray[Dtype], op: Op = SUM, out: None = None, **limits: Unpack[Limits]
    ) -> Posted[NDArray[Dtype]]: ...
    @overload
    def all_reduce(self, x: Dtype, op: Op = SUM, out: None = None, **limits: Unpack[Limits]) -> Posted[Dtype]: ...
    @overload
    def all_reduce(self, x: Any, op: Op | str = SUM, *, out: Out, **limits: Unpack[Limits]) -> Posted[Out]: ...
    @overload
    def all_reduce(self, x: Any, op: Op | str = SUM, out: Any = None, **limits: Unpack[Limits]) -> Posted[Any]: ...

    def all_reduce(
        self, x: Any, op: Op | str = SUM, out: Any = None, *, timeout: float | None = None, name: str | None = None
    ) -> Posted[Any]:
        """The reduction of every rank's ``x``, bit-identical on all ranks.

        ``x``: any array or number, equal shape and dtype on all ranks. Returns a new array of the same shape (``out``
        if given; a NumPy scalar for a number). Raises UsageError on all ranks if one rank's arguments are wrong,
        MismatchError on all if the ranks' calls differ. Cancelling breaks the group.
        """
        if timeout is None and name is None and self._at_home():
            again = self.all_reduce_again(x, op, out)
            if again is not None:
                return self._posted_again(*again)
        turn = self._turn("all_reduce", name)

        def prepare() -> tuple[str, Callable[[Channel], Awaitable[Any]]]:
            given = self._input(x, op, "all_reduce")
            plan = given.plan
            target = self._target(out, given, given.array.shape, "all_reduce")
            if given.array is x and not given.scalar and plan.work == plan.result == x.dtype and _repeats(given.op):
                self._keep_ready((given.op, x.dtype, x.shape), "all_reduce", plan.description, plan.algorithm.run)

            async def body(ch: Channel) -> Any:
                shape = given.array.shape
                home = home_of(target, shape, plan)
                work = await loaded(ch, given, home)
                await plan.algorithm.run(ch, work, plan.op)
                await _finish(ch, given.op, work, ch.size)
                return await deliver(ch, work, shape, plan, home, target, out, given.scalar)

            return plan.description, body

        return self._made(turn, timeout, prepare)

    def all_reduce_again(self, x: Any, op: Any, out: Any) -> Again | None:
        """The same for arguments like those of a call before, which need no second look; None for others."""
        if type(x) is not np.ndarray or type(op) is not Op or not x.flags.carray:
            return None
        ready = self._kinds.get((op, x.dtype, x.shape))
        if ready is None or observe.active:
            return None
        if out is None:
            if x.nbytes > pace.SLICE_BYTES:
                return None
            out = x.copy()
        elif out is not x:
            return None
        channel = ready.channel(self.timeout, out)
        return channel, self._live(channel.call, ready.run, channel, out if out.ndim == 1 else out.reshape(-1), op)

    @overload
    def reduce(
        self, x: NDArray[Inexact], op: Op | str = SUM, root: int = 0, out: None = None, **limits: Unpack[Limits]
    ) -> Posted[NDArray[Inexact] | None]: ...
    @overload
    def reduce(self, x: Any, op: Mean, root: int = 0, out: None = None, **limits: Unpack[Limits]) -> Posted[Any]: ...
    @overload
    def reduce(
        self, x: NDArray[Dtype], op: Op = SUM, root: int = 0, out: None = None, **limits: Unpack[Limits]
    ) -> Posted[NDArray[Dtype] | None]: ...
    @overload
    def reduce(
        self, x: Dtype, op: Op = SUM, root: int = 0, out: None = None, **limits: Unpack[Limits]
    ) -> Posted[Dtype | None]: ...
    @overload
    def reduce(
        self, x: Any, op: Op | str = SUM, root: int = 0, *, out: Out, **limits: Unpack[Limits]
    ) -> Posted[Out | None]: ...
    @overload
    def reduce(
        self, x: Any, op: Op | str = SUM, root: int = 0, out: Any = None, **limits: Unpack[Limits]
    ) -> Posted[Any]: ...

    def reduce(
        self, x: Any, op: Op | str = SUM, root: int = 0, out: Any = None,
        *, timeout: float | None = None, name: str | None = None,
    ) -> Posted[Any]:  # fmt: skip
        """The reduction on ``root``, an array of the shape of ``x`` (``out`` if given there); None elsewhere.

        ``x``: equal shape and dtype on all ranks. Ranks other than ``root`` may return before it has the result.
        """
        turn = self._turn("reduce", name)

        def prepare() -> tuple[str, Callable[[Channel], Awaitable[Any]]]:
            where = self._rank_of(root, "reduce", "root")
            given = self._input(x, op, "reduce", f" root={where}")
            plan, shape = given.plan, given.array.shape
            mine = self._scope.rank == where
            target = self._target(out, given, shape, "reduce")  # also where it stays as it is: a slip is a slip

            async def body(ch: Channel) -> Any:
                home = home_of(target, shape, plan) if mine else None
                work = await loaded(ch, given, home)
                await plan.algorithm.run(ch, work, plan.op, where)
                if not mine:
                    return None
                await _finish(ch, given.op, work, ch.size)
                return await deliver(ch, work, shape, plan, home, target, out, given.scalar)

            return plan.description, body

        return self._made(turn, timeout, prepare)

    @overload
    def reduce_scatter(
        self, x: Blocks[Inexact], op: Op | str = SUM, counts: Sequence[int] | None = None, out: None = None,
        **limits: Unpack[Limits],
    ) -> Posted[NDArray[Inexact]]: ...  # fmt: skip
    @overload
    def reduce_scatter(
        self, x: Any, op: Mean, counts: Sequence[int] | None = None, out: None = None, **limits: Unpack[Limits]
    ) -> Posted[Any]: ...
    @overload
    def reduce_scatter(
        self, x: Blocks[Dtype], op: Op = SUM, counts: Sequence[int] | None = None, out: None = None,
        **limits: Unpack[Limits],
    ) -> Posted[NDArray[Dtype]]: ...  # fmt: skip
    @overload
    def reduce_scatter(
        self, x: Any, op: Op | str = SUM, counts: Sequence[int] | None = None, *, out: Out, **limits: Unpack[Limits]
    ) -> Posted[Out]: ...
    @overload
    def reduce_scatter(
        self, x: Any, op: Op | str = SUM, counts: Sequence[int] | None = None, out: Any = None, **limits: Unpack[Limits]
    ) -> Posted[Any]: ...

    def reduce_scatter(
        self, x: Any, op: Op | str = SUM, counts: Sequence[int] | None = None, out: Any = None,
        *, timeout: float | None = None, name: str | None = None,
    ) -> Posted[Any]:  # fmt: skip
        """My block of the reduction of ``x`` along axis 0.

        ``x``: shape (n, ...), equal on all ranks, as is the dtype. Blocks differ by at most one row, as
        numpy.array_split cuts, unless ``counts`` (rows per rank, adding up to n, equal on all ranks) says otherwise.
        A list of arrays of one dtype, one per rank, is taken too: the i-th, of any shape, is what rank i gets reduced.
        Returns an array of my block's shape, or ``out``.
        """
        if out is not None and counts is None and timeout is None and name is None and self._at_home():
            again = self.reduce_scatter_again(x, op, out)
            if again is not None:
                return self._posted_again(*again)
        turn = self._turn("reduce_scatter", name)

        def prepare() -> tuple[str, Callable[[Channel], Awaitable[Any]]]:
            cut = cut_of(x, counts, self._scope.rank, self._scope.size)
            given = self._given(cut.whole(), False, op, "reduce_scatter", cut.text)
            plan, parts, elements, shape = given.plan, cut.parts, cut.elements(), cut.blocks[self._scope.rank]
            target = self._target(out, given, shape, "reduce_scatter", parts)
            alike = plan.work == plan.result == parts[0].dtype and _repeats(given.op)
            if parts[0] is x and alike and counts is None:
                key = ("reduce_scatter", given.op, x.dtype, x.shape)
                self._keep_ready(key, "reduce_scatter", plan.description, plan.algorithm.run)

            async def body(ch: Channel) -> Any:
                blocks = await readable(ch, parts, elements, plan.work)
                in_place = target is not None and any(np.may_share_memory(target, part) for part in parts)
                home = None if in_place else home_of(target, shape, plan)  # parts are read while the result grows
                mine = fresh(ch, elements[ch.rank], plan.work) if home is None else home.reshape(-1)
                await plan.algorithm.run(ch, blocks, plan.op, mine)
                await _finish(ch, given.op, mine, ch.size)
                return await deliver(ch, mine, shape, plan, home, target, out, cut.scalar)

            return plan.description, body

        return self._made(turn, timeout, prepare)

    def reduce_scatter_again(self, x: Any, op: Any, out: Any) -> Again | None:
        """The same for arrays like those of a call before; None for others."""
        if type(x) is not np.ndarray or type(op) is not Op or not x.flags.carray:
            return None
        ready = self._ready(("reduce_scatter", op, x.dtype, x.shape))
        if ready is None or type(out) is not np.ndarray or not out.flags.carray or out.dtype is not x.dtype:
            return None
        rank, size, rows = self._scope.rank, self._scope.size, x.shape[0]
        if out.shape != (rows // size + (rank < rows % size), *x.shape[1:]) or np.may_share_memory(x, out):
            return None
        flat, row = x.reshape(-1), x.size // max(rows, 1)
        at = patterns.offsets(patterns.even(rows, size))
        blocks = [flat[at[i] * row : at[i + 1] * row] for i in range(size)]
        channel = ready.channel(self.timeout, out)
        return channel, self._live(channel.call, ready.run, channel, blocks, op, out.reshape(-1))

    @overload
    def scan(self, x: NDArray[Inexact], op: Op | str = SUM, **limits: Unpack[Limits]) -> Posted[NDArray[Inexact]]: ...
    @overload
    def scan(self, x: Any, op: Mean, **limits: Unpack[Limits]) -> Posted[Any]: ...
    @overload
    def scan(self, x: NDArray[Dtype], op: Op = SUM, **limits: Unpack[Limits]) -> Posted[NDArray[Dtype]]: ...
    @overload
    def scan(self, x: Dtype, op: Op = SUM, **limits: Unpack[Limits]) -> Posted[Dtype]: ...
    @overload
    def scan(self, x: Any, op: Op | str = SUM, **limits: Unpack[Limits]) -> Posted[Any]: ...

    def scan(self, x: Any, op: Op | str = SUM, *, timeout: float | None = None, name: str | None = None) -> Posted[Any]:
        """The inclusive prefix: the reduction over ranks 0 to mine, of the shape of ``x``, which is equal on all ranks,
        as is the dtype."""
        return self._prefix("scan", x, op, timeout, name)

    @overload
    def exscan(
        self, x: NDArray[Inexact], op: Op | str = SUM, **limits: Unpack[Limits]
    ) -> Posted[NDArray[Inexact] | None]: ...
    @overload
    def exscan(self, x: Any, op: Mean, **limits: Unpack[Limits]) -> Posted[Any]: ...
    @overload
    def exscan(self, x: NDArray[Dtype], op: Op = SUM, **limits: Unpack[Limits]) -> Posted[NDArray[Dtype] | None]: ...
    @overload
    def exscan(self, x: Dtype, op: Op = SUM, **limits: Unpack[Limits]) -> Posted[Dtype | None]: ...
    @overload
    def exscan(self, x: Any, op: Op | str = SUM, **limits: Unpack[Limits]) -> Posted[Any]: ...

    def exscan(
        self, x: Any, op: Op | str = SUM, *, timeout: float | None = None, name: str | None = None
    ) -> Posted[Any]:
        """The exclusive prefix: the reduction over the ranks below mine, of the shape of ``x``, which is equal on all
        ranks, as is the dtype. On rank 0 an array full of the op's identity, or None where the op has none."""
        return self._prefix("exscan", x, op, timeout, name)

    def _prefix(self, collective: str, x: Any, op: Op | str, timeout: float | None, name: str | None) -> Posted[Any]:
        turn = self._turn(collective, name)

        def prepare() -> tuple[str, Callable[[Channel], Awaitable[Any]]]:
            given = self._input(x, op, collective)
            plan, shape = given.plan, given.array.shape
            below = self._scope.rank + (collective == "scan")

            async def body(ch: Channel) -> Any:
                home = home_of(None, shape, plan)
                work = await loaded(ch, given, home)
                await plan.algorithm.run(ch, work, plan.op)
                if below == 0:
                    first = given.op.identity_array(shape, plan.result)
                    return first[()] if given.scalar and first is not None else first
                await _finish(ch, given.op, work, below)
                return await deliver(ch, work, shape, plan, home, None, None, given.scalar)

            return plan.description, body

        return self._made(turn, timeout, prepare)

    # -- preparing

    def _input(self, x: Any, op: Op | str, collective: str, more: str = "") -> Input:
        array, scalar = as_array(x, what=collective, rank=self._scope.rank)
        return self._given(array, scalar, op, collective, more)

    def _given(self, array: Array, scalar: bool, op: Op | str, collective: str, more: str) -> Input:
        try:
            operator = as_op(op)
        except UsageError as error:
            raise UsageError(f"{collective} on rank {self._scope.rank}: {error}") from None
        if operator.function is not None:
            # A function sees the context that it is called in, and is nobody's to keep.
            return Input(array, scalar, operator, self._reduction_plan(collective, operator, array, more))
        dtype = array.dtype
        key = (collective, operator, dtype, dtype.char, array.shape, more)  # int64 has two equal dtypes
        plan = self._plan(key, lambda: self._reduction_plan(collective, operator, array, more))
        return Input(array, scalar, operator, plan)

    def _reduction_plan(self, collective: str, op: Op, array: Array, more: str) -> Plan:
        rank = self._scope.rank
        op.check(array.dtype, rank, collective)
        work = op.work_dtype(array.dtype)
        if self._carrier is not None:
            self._carrier.check(collective, op, work, rank)
        narrow = is_narrow(array.dtype) and work != native(array.dtype)
        nbytes = array.nbytes if narrow else array.size * work.itemsize
        in_turn = not op.associates(array.dtype)
        algorithm = self._chosen(collective, nbytes, count=array.size, op=op, narrow=narrow, in_turn=in_turn)
        if narrow and algorithm.narrow:
            work = native(array.dtype)
        description = (
            f"{collective} op={op.name} dtype={native(array.dtype)} shape={array.shape}{more} ({algorithm.name})"
        )
        bound = op.bind(array.shape, work, rank=rank, what=collective)
        return Plan(description, algorithm, bound, work, op.result_dtype(array.dtype))

    def _target(
        self, out: Any, given: Input, shape: tuple[int, ...], collective: str, inputs: Sequence[Array] | None = None
    ) -> Array | None:
        if out is None:
            return None
        rank = self._scope.rank
        target = as_out(out, what=collective, rank=rank)
        dtype = given.plan.result
        if target.dtype != dtype and given.op.allows_out(given.array.dtype, target.dtype):
            dtype = target.dtype
        check_out(target, shape, dtype, [given.array] if inputs is None else inputs, what=collective, rank=rank)
        return target
