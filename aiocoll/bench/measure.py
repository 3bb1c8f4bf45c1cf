"""One row of the table, on all ranks: check every element, warm up, time.

The rule: all ranks do the same calls in the same number, decided by rank 0; between timed calls stands no barrier, only
the change of a few elements and a look at them, which no clock counts.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from .. import observe
from ..errors import UsageError
from .callers import Caller
from .cases import Case, Setting, case_of
from .floor import Machine
from .pattern import tables
from .records import Cell, Row, link_bytes
from .request import ROOTED, Request, dtype_named

_BLOCKS: Final = 20
_CALLS_MIN: Final = 5
_CALLS_MAX: Final = 50_000
_TRIAL: Final = 0.1  # of the time of a row, after which its calls are counted


class Watch:
    """Hears which algorithm serves a call: reductions and barriers say so."""

    def __init__(self) -> None:
        self.algorithm: str = ""
        self._remove = observe.listen(self._heard)

    def __repr__(self) -> str:
        return f"Watch({self.algorithm!r})"

    def _heard(self, kind: str, facts: dict[str, Any]) -> None:
        description = str(facts.get("description", ""))
        if kind == "call" and description.endswith(")"):
            self.algorithm = description.rpartition("(")[2][:-1]

    def close(self) -> None:
        """Stops listening, so that timed calls are not slowed."""
        self._remove()


@dataclass(slots=True)
class Table:
    """The rows of one group, one after the other."""

    request: Request
    caller: Caller
    machine: Machine
    forced: str = ""
    _transport: str = ""
    _sent: dict[str, int] = field(default_factory=dict)
    _call: int = 0
    """The number of the last call: the data of the next differ from it."""
    _missed: int = 0
    """Elements of this cell that were looked at and wrong."""

    async def row(self, collective: str, dtype_name: str, op: str, nbytes: int) -> Row | None:
        """Measures one row. On rank 0 the row (without a cell where the call does not exist so), elsewhere None."""
        group, request = self.caller.group, self.request
        dtype = dtype_named(dtype_name) if dtype_name else np.dtype(np.uint8)
        inputs = tables(op, dtype, group.size)
        cells: dict[str, Cell] = {}
        algorithm = self.forced
        for place in request.places:
            case = case_of(collective, Setting(
                group=group, facade=self.caller.facade, dtype=dtype, op=op, root=request.root,
                count=nbytes // dtype.itemsize, in_place=place == "in", tables=inputs, shared=request.shared,
                awaited=self.caller.awaited,
            ))  # fmt: skip
            if case is None:
                continue
            try:
                cell, heard = await self._cell(case)
            except UsageError:
                if not self.forced:
                    raise
                algorithm = f"{self.forced}: refused"  # it cannot serve this size: all ranks are told so alike
                continue
            algorithm = heard or algorithm
            if cell is not None:
                cells[place] = cell
        self._transport = self._carrier() or self._transport
        floor = await self.machine.floor(link_bytes(collective, nbytes, group.size))
        if group.rank != 0:
            return None
        return Row(
            collective=collective, nbytes=nbytes, count=nbytes // dtype.itemsize, dtype=dtype_name, op=op,
            root=request.root if collective in ROOTED else -1, ranks=group.size, transport=self._transport,
            algorithm=algorithm, forced=self.forced, caller=request.caller, shared=request.shared, floor=floor,
            cells=cells,
        )  # fmt: skip

    async def _cell(self, case: Case) -> tuple[Cell | None, str]:
        """The cell on rank 0, and the algorithm that served it where it can be heard."""
        caller, request = self.caller, self.request
        self._missed, wrong, watch = 0, 0, Watch()
        try:
            for _ in range(max(1, request.checks)):
                self._call += 1
                case.fill(self._call)
                value = await caller.once(case)
                if request.checks:
                    wrong += case.wrong(value, self._call)
        finally:
            watch.close()
        calls = await self._calibrated(case)
        case.fill(self._call)
        seconds = await self._timed(case, calls)
        everybody = await caller.collected(np.array([wrong + self._missed, *seconds]))
        if everybody is None:
            return None, watch.algorithm
        return summary(case, np.stack(everybody)), watch.algorithm

    async def _calibrated(self, case: Case) -> int:
        """Warms up; gives the number of calls to be timed, the same on all ranks."""
        request = self.request
        calls = max(request.warmup, 0 if request.calls else 1)
        while calls:
            seconds = await self._timed(case, calls)
            if request.calls:
                break
            took = await self.caller.told(float(seconds.sum()))
            if took >= _TRIAL * request.seconds or calls >= _CALLS_MAX:
                wanted = calls * request.seconds / max(took, 1e-9)
                return max(_CALLS_MIN, min(_CALLS_MAX, math.ceil(wanted)))
            calls = min(_CALLS_MAX, max(2 * calls, math.ceil(calls * 1.5 * _TRIAL * request.seconds / max(took, 1e-9))))
        return request.calls

    async def _timed(self, case: Case, calls: int) -> NDArray[np.float64]:
        first = self._call + 1
        self._call += calls
        seconds, missed = await self.caller.timed(case, first, calls)
        self._missed += missed
        return seconds

    def _carrier(self) -> str:
        """The transport over which most bytes went since the last time; empty where none went."""
        sent: dict[str, int] = self.caller.group.statistics()["bytes_sent"]
        grown = {name: count - self._sent.get(name, 0) for name, count in sent.items()}
        self._sent = dict(sent)
        name = max(grown, key=lambda each: grown[each], default="")
        return name if name and (grown[name] or len(grown) == 1) else ""


def summary(case: Case, everybody: NDArray[np.float64]) -> Cell:
    """One line per rank, (wrong elements, seconds of each call), made into what is shown."""
    each = everybody[:, 1:] / case.trips
    blocks = [float(block.mean(axis=1).max()) for block in np.array_split(each, min(_BLOCKS, each.shape[1]), axis=1)]
    low, middle, high = np.percentile(blocks, [10, 50, 90])
    return Cell(
        call=case.what,
        seconds=float(middle),
        low=float(low),
        high=float(high),
        p99=float(np.percentile(each.max(axis=0), 99)),
        calls=each.shape[1],
        wrong=int(everybody[:, 0].sum()),
    )
