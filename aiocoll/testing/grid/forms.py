"""How the call of a cell is made: its arguments on one rank, and what is done with what comes back.

Rule: one rank's part, and nothing of what the others do.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from ... import ops
from .cells import Cell
from .kinds import LAYOUTS, gaps, untouched
from .oracle import NOTHING, equal, expected, given, refusal

Array = NDArray[Any]

USER: Final[dict[str, ops.Op]] = {
    "first": ops.op(lambda left, right: left.copy()),
    "last": ops.op(lambda left, right: right.copy()),
}


def op_of(name: str) -> ops.Op:
    """The op of a cell."""
    return USER[name] if name in USER else ops.as_op(name)


class Part:
    """One rank's arguments for the call of a cell, and the verdict on what it gives."""

    cell: Cell
    rank: int

    def __init__(self, cell: Cell, rank: int) -> None:
        self.cell, self.rank = cell, rank
        self.wanted: Any = None if refusal(cell) else expected(cell, rank)
        lay = LAYOUTS[cell.layout]
        self.x: Any = lay(given(cell, rank))
        self.parts: list[Any] = []
        if cell.collective in ("scatter", "all_to_all") or (cell.collective == "reduce_scatter" and cell.facade):
            self.parts = [lay(given(cell, rank, part)) for part in range(cell.size)]
        self.out: Any = self._out()
        self.inputs: list[Any] = [self.x, *self.parts]
        self.before: list[Array] = [np.array(each) for each in self.inputs]

    def __repr__(self) -> str:
        return f"<Part {self.cell} of rank {self.rank}>"

    def _out(self) -> Any:
        cell = self.cell
        if cell.out == "in place":
            return self.x
        if cell.out == "new" or cell.facade:
            return None
        return self.blank(self.joined() if cell.collective == "all_gather" else self._like())

    def _like(self) -> Array:
        return self.wanted if isinstance(self.wanted, np.ndarray) else given(self.cell, self.rank)

    def joined(self) -> Array:
        """An array for what all ranks have: one after the other, or stacked."""
        x, size = given(self.cell, self.rank), self.cell.size
        shape = (size * x.shape[0], *x.shape[1:]) if x.ndim and self.cell.turn % 3 else (size, *x.shape)
        return np.zeros(shape, x.dtype)

    def blank(self, like: Array) -> Any:
        """An array of this shape in the cell's layout that holds something else (what an output held before)."""
        other = np.ones(like.shape, like.dtype) if like.dtype.kind not in "OT" else like
        return self.lay(other)

    def lay(self, x: Array) -> Any:
        """An array in the cell's layout."""
        return x if self.cell.layout in ("0-d", "empty") else LAYOUTS[self.cell.layout](x)

    # -- the calls of Group and SyncGroup

    def call(self) -> tuple[str, tuple[Any, ...], dict[str, Any]]:
        """The method, its arguments and keywords."""
        cell = self.cell
        more: dict[str, Any] = {} if cell.out == "new" else {"out": self.out}
        if cell.collective in ("reduce", "broadcast", "gather", "scatter"):
            more["root"] = cell.root
        if cell.op:
            more["op"] = op_of(cell.op) if cell.op in USER or cell.turn % 2 else cell.op
        first = self.x
        if cell.collective == "all_to_all":
            first = self.parts
        elif cell.collective == "scatter":
            first = self.parts if self.rank == cell.root else None
        elif cell.collective == "broadcast" and self.rank != cell.root and cell.out != "in place":
            first = None
        return cell.collective, (first,), more

    # -- the verdict

    def verdict(self, result: Any) -> str:
        """Empty if it is right."""
        if self.wanted is None:
            return f"gave {result!r:.120} and should be refused"
        if self.out is not None:
            wrong = self._filled(result)
        elif self.wanted is NOTHING:
            wrong = "" if result is None else f"gave {result!r:.120} where there is nothing"
        elif isinstance(self.wanted, list):
            wrong = self._list(result)
        else:
            wrong = self._value(result)
        return wrong or self._inputs()

    def _filled(self, result: Any) -> str:
        if self.wanted is NOTHING:
            return "" if result is None else f"gave {result!r:.120} where there is nothing"
        if result is not self.out:
            return f"gave another object than its out: {result!r:.120}"
        return self.holds(self.out, self.wanted)

    def holds(self, out: Array, wanted: Any) -> str:
        """Empty if an output holds what it shall and nothing around it has changed."""
        between = gaps(out)
        if between is not None and out.dtype.kind not in "O" and not untouched(between):
            return "something was written between the elements of an output"
        if isinstance(wanted, list):
            table = out.reshape(len(wanted), *np.shape(wanted[0]))
            right = all(equal(table[place], each) for place, each in enumerate(wanted))
        else:
            right = equal(out, np.asarray(wanted))
        return "" if right else f"its output holds {out!r:.200} and not {wanted!r:.200}"

    def _value(self, result: Any) -> str:
        given_back = self.cell.collective == "broadcast" and self.rank == self.cell.root
        if not given_back and isinstance(result, np.ndarray):
            if not result.dtype.isnative or not result.flags.writeable:
                return f"gave {result.dtype} in foreign byte order, or locked"
            if any(isinstance(each, np.ndarray) and np.may_share_memory(result, each) for each in self.inputs):
                return "gave memory of its input"
        number = self.cell.layout == "number" and not isinstance(result, np.generic)
        if number and not (given_back and isinstance(self.x, np.ndarray)):
            return f"gave {type(result).__name__} for a number"
        return "" if equal(result, self.wanted) else f"gave {result!r:.200} and not {self.wanted!r:.200}"

    def _list(self, result: Any) -> str:
        if not isinstance(result, list) or len(result) != len(self.wanted):
            return f"gave {result!r:.120} and not a list of {len(self.wanted)}"
        for place, (each, wanted) in enumerate(zip(result, self.wanted, strict=True)):
            if not equal(each, wanted):
                return f"gave {each!r:.200} of rank {place} and not {wanted!r:.200}"
        return ""

    def _inputs(self) -> str:
        """Inputs are never touched."""
        for each, before in zip(self.inputs, self.before, strict=True):
            if each is self.out:
                continue
            if not equal(np.asarray(each), before):
                return f"its input became {each!r:.200}"
        return ""


def facade_call(part: Part, dist: Any, async_op: bool) -> tuple[Callable[[], Any], Callable[[], str]]:
    """The documented call of a cell, as what makes it (and gives a handle, or None), and the verdict on its tensors."""
    cell, rank, wanted = part.cell, part.rank, part.wanted
    root, op = cell.root, op_of(cell.op) if cell.op else None
    if cell.op == "MEAN":
        op = dist.ReduceOp.AVG
    elif cell.op == "SUM" and cell.turn % 2:
        op = dist.ReduceOp.SUM

    def in_tensor(tensor: Any, value: Any = wanted) -> Callable[[], str]:
        return lambda: part.holds(tensor, value)

    def in_list(tensors: list[Any]) -> Callable[[], str]:
        return lambda: next(filter(None, map(part.holds, tensors, wanted)), "") if isinstance(wanted, list) else "?"

    like = given(cell, rank)
    single = _single_call(part, dist, op, async_op)
    if single is not None:
        return single
    match cell.collective:
        case "broadcast":
            return lambda: dist.broadcast(part.x, root, async_op=async_op), in_tensor(part.x)
        case "all_reduce":
            return lambda: dist.all_reduce(part.x, op, async_op=async_op), in_tensor(part.x)
        case "reduce":
            kept = wanted if rank == root else part.before[0]
            return lambda: dist.reduce(part.x, root, op, async_op=async_op), in_tensor(part.x, kept)
        case "all_gather":
            outs = [part.blank(like) for _ in range(cell.size)]
            return lambda: dist.all_gather(outs, part.x, async_op=async_op), in_list(outs)
        case "gather":
            outs = [part.blank(like) for _ in range(cell.size)]
            if rank != root:
                return lambda: dist.gather(part.x, dst=root, async_op=async_op), lambda: ""
            return lambda: dist.gather(part.x, outs, root, async_op=async_op), in_list(outs)
        case "scatter":
            out = part.blank(like)
            parts = part.parts if rank == root else None
            return lambda: dist.scatter(out, parts, root, async_op=async_op), in_tensor(out)
        case "all_to_all":
            outs = [part.blank(like) for _ in range(cell.size)]
            return lambda: dist.all_to_all(outs, part.parts, async_op=async_op), in_list(outs)
        case "reduce_scatter":
            out = part.blank(like)
            return lambda: dist.reduce_scatter(out, part.parts, op, async_op=async_op), in_tensor(out)
    raise ValueError(f"nobody knows how to call {cell.collective}")


def _single_call(part: Part, dist: Any, op: Any, async_op: bool) -> tuple[Callable[[], Any], Callable[[], str]] | None:
    """For every other turn, the same with one tensor for what all ranks give or get, stacked or one after the other."""
    cell, root = part.cell, part.cell.root
    if cell.turn % 2 or cell.layout == "number":
        return None
    out: Any = part.blank(part.joined())
    match cell.collective:
        case "all_gather":
            make = partial(dist.all_gather_single, out, part.x)
        case "gather" if part.rank == root:
            make = partial(dist.gather_single, part.x, out, root)
        case "gather":
            return partial(dist.gather_single, part.x, dst=root, async_op=async_op), lambda: ""
        case "all_to_all":
            outgoing = part.lay(np.concatenate([np.atleast_1d(each) for each in part.parts]))
            out = part.blank(outgoing)
            make = partial(dist.all_to_all_single, out, outgoing)
        case "reduce_scatter":
            out = part.blank(given(cell, part.rank))
            make = partial(dist.reduce_scatter_single, out, part.lay(np.stack(part.parts)), op)
        case _:
            return None
    return partial(make, async_op=async_op), lambda: part.holds(out, part.wanted)


__all__ = ["Part", "facade_call", "op_of"]
