"""A rank of a notebook: runs one cell after the other in one namespace, and says what became of each.

Rule: between cells a rank lives whatever happens; inside a cell it is an ordinary program, whose Ctrl-C, exceptions and
output are the cell's. Code comes through a pipe that the notebook's own process has opened, from nowhere else.
"""

from __future__ import annotations

import ast
import asyncio
import contextlib
import inspect
import linecache
import os
import signal
import sys
import types
from collections.abc import Coroutine, Sequence
from types import CodeType, FrameType
from typing import Any

from aiocoll import sync
from aiocoll.errors import AiocollError
from aiocoll.group import Group
from aiocoll.notebook import cells
from aiocoll.observe import report
from aiocoll.runner import orders
from aiocoll.sync.interrupt import INTERRUPTS
from aiocoll.sync.stepping import T, abandon_task, stop_loop
from aiocoll.world import connect

_FLAGS = ast.PyCF_ALLOW_TOP_LEVEL_AWAIT
_TEXT_CHARS_MAX = 20_000
_LATE_S = 1.0
_CELL = "<ranks cell "


def main() -> None:
    """The program that a `Crew` starts on each rank."""
    told = int(os.environ.pop(orders.VARIABLE))
    results = int(os.environ.pop("AIOCOLL_RESULT_FD"))
    for fd in (told, results):
        os.set_inheritable(fd, False)
    with asyncio.Runner() as runner:
        Worker(told, results, runner.get_loop()).serve()


class Worker:
    """One rank, from its first cell to its last."""

    def __init__(self, told: int, results: int, loop: asyncio.AbstractEventLoop) -> None:
        self._told, self._results, self._loop = told, results, loop
        os.set_blocking(told, False)
        self._home = os.getpid()
        self._unread = bytearray()
        self._space = types.ModuleType("__main__")
        sys.modules["__main__"] = self._space  # so that functions of cells can be pickled as those of a script
        self._group: sync.SyncGroup | None = None
        self._awaited: Group | None = None
        self._connect: dict[str, Any] = {}
        self._interrupt: Any = signal.default_int_handler
        """What handles Ctrl-C while a cell runs."""
        self._came = False
        self._missed = asyncio.Event()
        """Whether one has come since the last cell ended."""

    def __repr__(self) -> str:
        return f"Worker({self._group!r})"

    def serve(self) -> None:
        """Meets the others, then does what it is told, until there is nobody who could tell."""
        setup = self._next()
        if setup is None:
            return
        sys.path[:], self._connect = setup["path"], setup["connect"]
        group = self._meet()
        vars(self._space).update(rank=group.rank, size=group.size)
        self._interrupt = signal.signal(signal.SIGINT, self._not_now)
        self._say({"number": cells.READY, "value": None, "error": None, "talked": False})
        try:
            while (order := self._next()) is not None:
                if "code" in order:
                    self._answer(order)
                elif "leave" in order:
                    self._break(AiocollError(order["leave"]))
                else:
                    self._wait_for(self._late_interrupt())
        finally:
            self._leave()

    def _next(self) -> dict[str, Any] | None:
        """The next order; None at the end of the pipe. What cells have left in the loop goes on meanwhile."""
        while (order := cells.unpack(self._unread)) is None:
            self._wait_for(self._readable())
            data = os.read(self._told, 1 << 20)
            if not data:
                return None
            self._unread += data
        return order

    async def _readable(self) -> None:
        ready = asyncio.Event()
        self._loop.add_reader(self._told, ready.set)
        try:
            await ready.wait()
        finally:
            self._loop.remove_reader(self._told)

    def _not_now(self, number: int, frame: FrameType | None) -> None:
        """A Ctrl-C between two cells is nobody's; one that comes while a cell is prepared waits until it begins."""
        self._came = True
        self._loop.call_soon_threadsafe(self._missed.set)

    async def _late_interrupt(self) -> None:
        """One was sent to the cell that has just ended by itself: the next one shall not get it."""
        with contextlib.suppress(TimeoutError):  # none was under way
            async with asyncio.timeout(_LATE_S):
                await self._missed.wait()

    # ------------------------------------------------------------------------------------------ one cell

    def _answer(self, order: dict[str, Any]) -> None:
        value: str | None = None
        error: BaseException | None = None
        before = -1
        self._came = (
            self._came and order["number"] == 1
        )  # it was meant for the first cell, also while this rank started
        try:
            if order["renew"]:
                self._renew()
            parts = _compiled(order["code"], f"{_CELL}{order['number']}>")
            awaits = any(part.co_flags & inspect.CO_COROUTINE for part in parts)
            vars(self._space)["group"] = self._async_group() if awaits else self._group
            before = self._talk()
            try:
                INTERRUPTS.forget()
                self._missed.clear()
                signal.signal(signal.SIGINT, self._interrupt)
                if self._came:
                    raise KeyboardInterrupt
                value = _shown(self._wait_for(self._awaited_parts(parts)) if awaits else self._run(parts))
            finally:
                self._interrupt = signal.signal(signal.SIGINT, self._not_now) or signal.default_int_handler
        except BaseException as caught:
            signal.signal(signal.SIGINT, self._not_now)
            error = _of_the_cell(caught)
        for stream in (sys.stdout, sys.stderr):
            with contextlib.suppress(Exception):  # the cell may have put something else there, or nothing
                stream.flush()
        if os.getpid() != self._home:  # a child that the cell has forked is no rank, and nobody waits for its answer
            os._exit(0 if error is None else 1)
        told = None if error is None else report.describe(error)
        self._say({"number": order["number"], "value": value, "error": told, "talked": self._talk() != before})

    def _say(self, record: dict[str, Any]) -> None:
        view = memoryview(cells.pack(record))
        while view:
            view = view[os.write(self._results, view) :]

    def _run(self, parts: Sequence[CodeType]) -> Any:
        return [eval(part, vars(self._space)) for part in parts][-1]  # noqa: S307  the user's own cell

    async def _awaited_parts(self, parts: Sequence[CodeType]) -> Any:
        value = None
        for part in parts:
            value = eval(part, vars(self._space))  # noqa: S307  the user's own cell
            if part.co_flags & inspect.CO_COROUTINE:
                value = await value
        return value

    def _wait_for(self, coroutine: Coroutine[Any, Any, T]) -> T:
        """Runs the loop until `coroutine` is done: more than once, for a stop may be left over from an interrupt."""
        task = self._loop.create_task(coroutine)
        task.add_done_callback(stop_loop)
        try:
            while not task.done():
                self._loop.run_forever()
        except BaseException:
            abandon_task(task, self._loop)
            raise
        return task.result()

    # ------------------------------------------------------------------------------------------ the groups

    def _meet(self) -> sync.SyncGroup:
        group = self._group = sync.connect(**self._connect)
        return group

    def _leave(self) -> None:
        if self._awaited is not None:
            self._wait_for(self._lineage(self._awaited).close())
            self._awaited = None
        if self._group is not None:
            self._group.disconnect()
            self._group = None

    def _async_group(self) -> Group:
        """The group of cells that await; all ranks run the same cell, so all of them connect."""
        if self._awaited is None:

            async def connected() -> Group:
                return await connect(**self._connect)

            self._awaited = self._wait_for(connected())
        return self._awaited

    def _break(self, error: BaseException) -> None:
        """Nobody shall wait for this rank in any group that grew out of the notebook's."""
        if self._group is not None:
            group = self._group.asynchronous

            async def fail() -> None:
                self._lineage(group).program_failed(error)

            self._group.run(lambda _: fail())
        if self._awaited is not None:
            self._lineage(self._awaited).program_failed(error)

    def _renew(self) -> None:
        """After a failure: what the ranks had in common may be out of step, so they meet afresh."""
        self._leave()
        self._meet()

    def _talk(self) -> int:
        """Bytes that went to and fro by now."""
        found = 0
        for group in (self._group, self._awaited):
            if group is not None:
                numbers = group.statistics()
                found += sum(sum(numbers[each].values()) for each in ("bytes_sent", "bytes_received"))
        return found

    @staticmethod
    def _lineage(group: Group) -> Any:
        assert group._connection is not None
        return group._connection.lineage


def _compiled(source: str, name: str) -> list[CodeType]:
    """A cell as code: its statements and, unless a semicolon ends it, the last expression, whose value is shown."""
    linecache.cache[name] = (len(source), None, source.splitlines(keepends=True), name)
    tree = compile(source, name, "exec", ast.PyCF_ONLY_AST | _FLAGS, dont_inherit=True)
    last = tree.body[-1] if tree.body else None
    if not isinstance(last, ast.Expr) or _rest(source, last).startswith(b";"):
        return [compile(tree, name, "exec", _FLAGS, dont_inherit=True)]
    del tree.body[-1]
    return [
        compile(tree, name, "exec", _FLAGS, dont_inherit=True),
        compile(ast.Expression(last.value), name, "eval", _FLAGS, dont_inherit=True),
    ]


def _rest(source: str, last: ast.Expr) -> bytes:
    """What stands behind the last expression in its line."""
    assert last.end_lineno is not None
    return source.encode().split(b"\n")[last.end_lineno - 1][last.end_col_offset :].lstrip()


def _shown(value: Any) -> str | None:
    if value is None:
        return None
    text = repr(value)
    return text if len(text) <= _TEXT_CHARS_MAX else text[:_TEXT_CHARS_MAX] + " […]"


def _of_the_cell(error: BaseException) -> BaseException:
    """The error with a traceback that begins in the cell."""
    trace = error.__traceback__
    while trace is not None and not trace.tb_frame.f_code.co_filename.startswith(_CELL):
        trace = trace.tb_next
    return error.with_traceback(trace)
