"""The notebook's end of its ranks: starts them, sends them cells, shows what they say, and gathers their answers.

Rule: only the thread that runs a cell writes to the notebook, so everything stands under the cell it belongs to; the
job itself is the runner's, in a thread of its own. The ranks end with this process, however it ends.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import queue
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Final

from aiocoll.errors import AiocollError, CollectiveTimeoutError
from aiocoll.notebook.cells import READY, Answer, pack, unpack
from aiocoll.runner.console import Console
from aiocoll.runner.job import Attempt
from aiocoll.runner.options import Options
from aiocoll.runner.orders import Orders
from aiocoll.runner.plan import Layout, base_environment, python_command
from aiocoll.runner.replace import Claim
from aiocoll.runner.start import Recipe, Started
from aiocoll.runner.supervise import Supervisor
from aiocoll.runner.verdict import names

_ROOT = str(Path(__file__).resolve().parents[2])
_START = f"import sys; sys.path.insert(0, {_ROOT!r}); from aiocoll.notebook.worker import main; main()"
SETTLE_S: Final = 0.3
"""So long ranks whose cell has failed let the others finish theirs; then nobody waits for them any more."""
PATIENCE_S: Final = 5.0
"""After an interrupt, until the ranks that do not react are named."""
START_S: Final = 10.0
LEAVE_S: Final = 2.0
GRACE_S: Final = 1.0
_CHUNKS_MAX: Final = 256  # of output that no cell has shown yet; then the ranks' pipes fill up

Show = Callable[[str, str], None]
"""Writes a text to "stdout" or "stderr"."""


class Crew:
    """`n` ranks on this host that wait for cells."""

    def __init__(self, n: int, *, environ: Mapping[str, str], path: Sequence[str], **connect: Any) -> None:
        self.size = n
        self.cells: int = 0
        """How many have been run."""
        self.over: list[str] | None = None
        """Why there are no ranks any more, in words."""
        self._home = os.getpid()
        self._inbox: queue.Queue[tuple[str, str] | Answer | None] = queue.Queue(_CHUNKS_MAX)
        self._shown = frozenset(range(n))
        self._renew = False
        self._ready: set[int] = set()
        self._held: set[int] = set()
        """Ranks that an interrupt is kept for: one that still starts would die of it."""
        self._closing = False
        env = base_environment(environ, {}, n)
        if env.get("MPLBACKEND", "").startswith("module://"):
            env["MPLBACKEND"] = "Agg"  # the notebook's draws into the notebook, and only from there
        self._orders, self._watched, self._started = Orders(), threading.Event(), threading.Event()
        recipe = Recipe([*python_command(), "-c", _START], env, piped=True, orders=self._orders)
        sinks = (_Sink(self, "stdout"), _Sink(self, "stderr"))
        self._console = Console(*sinks, prefixed=True, shown=lambda rank: rank in self._shown, environ=env)
        try:
            first = recipe.start_alone(Layout(size=n, ranks=n, job=os.urandom(6).hex()))
        except BaseException:
            self._console.close()
            raise
        options = Options(command=("ranks",), ranks=n, grace=GRACE_S, stdin=None)
        self._supervisor = _Supervisor(options, recipe, self._console, self._heard, self._has_begun)
        self._thread = threading.Thread(target=self._watch, args=(first,), name="aiocoll ranks", daemon=True)
        self._thread.start()
        self._watched.wait()
        self._send(range(n), {"path": [entry or os.getcwd() for entry in path], "connect": connect})

    def __repr__(self) -> str:
        return f"Crew({self.size} ranks, {self.cells} cells, over={self.over})"

    @property
    def pids(self) -> dict[int, int]:
        """The ranks' processes; waits until those have been started that are about to be."""
        self._started.wait(START_S)
        attempt = self._supervisor.attempt
        return dict(attempt.pids) if attempt is not None and self.over is None else {}

    @property
    def cause(self) -> str:
        """Why there are no ranks any more, in a line."""
        return (self.over or ["they were stopped"])[0].removeprefix("aiocoll: ")

    # ------------------------------------------------------------------------------------------ cells

    def run(self, code: str, show: Show, *, shown: Sequence[int] | None = None, timeout: float = 0.0) -> list[Answer]:
        """Runs a cell on all ranks and returns their answers in rank order, once the last one has answered.

        `shown`: whose output is shown, None for all. After ``timeout`` seconds (0: never) the cell is interrupted on
        the ranks that still run it, and `CollectiveTimeoutError` names them. A KeyboardInterrupt that comes meanwhile
        ends the cell on every rank and is raised here afterwards; a second one ends the ranks. A rank that dies ends
        all of them: AiocollError says how.
        """
        self._refuse_if_over()
        self.cells += 1
        self._shown = frozenset(range(self.size) if shown is None else shown)
        self._send(range(self.size), {"code": code, "number": self.cells, "renew": self._renew})
        self._renew = True  # unless all goes well
        gathering = _Gathering(self, show, time.monotonic() + timeout if timeout else float("inf"))
        answers = gathering.to_the_end()
        failed = any(answer.error for answer in answers)
        self._renew = gathering.let_go or (failed and any(answer.talked for answer in answers))
        for answer in answers:
            if answer.rank in gathering.interrupted and not answer.interrupted:
                self._send([answer.rank], {"interrupted": True})  # it may be on its way still
        if gathering.interrupts:
            raise KeyboardInterrupt
        if gathering.late:
            were = "was" if len(gathering.late) == 1 else "were"
            raise CollectiveTimeoutError(
                f"{names(gathering.late)} had not finished the cell after {timeout:g} s and {were} interrupted",
                missing=tuple(gathering.late), operation="cell", elapsed=timeout,
            )  # fmt: skip
        return answers

    def interrupt(self, ranks: Sequence[int]) -> None:
        """Ctrl-C for the cell on some ranks; on others, which have finished it, nothing."""
        attempt = self._supervisor.attempt
        if attempt is not None:
            self._soon(partial(self._interrupt, attempt, ranks))

    def _interrupt(self, attempt: Attempt, ranks: Sequence[int]) -> None:
        self._held.update(set(ranks) - self._ready)
        attempt.interrupt([rank for rank in ranks if rank in self._ready])

    def let_go(self, answer: Answer) -> None:
        """Others wait for a rank whose cell has failed: they hear so."""
        if answer.error is not None:
            self._send([answer.rank], {"leave": f"{answer.error['class']}: {answer.error['message']}".rstrip(": ")})

    def next(self, seconds: float) -> tuple[str, str] | Answer | None:
        """The next thing to show, or answer; None when nothing came in time, or the ranks are no more."""
        try:
            return self._inbox.get(timeout=seconds)
        except queue.Empty:
            return None

    def _refuse_if_over(self) -> None:
        if os.getpid() != self._home:
            raise AiocollError(f"these ranks belong to process {self._home}; this is a forked child of it")
        if self.over is not None:
            raise AiocollError(f"the ranks have ended: {self.cause}")

    # ------------------------------------------------------------------------------------------ the end

    def stop(self) -> None:
        """Ends the ranks: those that wait leave by themselves, the others are interrupted, then killed."""
        if self._closing or os.getpid() != self._home:
            return
        self._closing = True
        loop = self._supervisor.loop

        def leave() -> None:
            assert loop is not None
            self._orders.close(loop)
            loop.call_later(LEAVE_S, self.kill)

        self._soon(leave)
        self._thread.join()

    def kill(self) -> None:
        """Interrupts the ranks and kills those that do not end then."""
        attempt = self._supervisor.attempt
        if attempt is not None:
            self._soon(partial(attempt.stop, 130))

    # ------------------------------------------------------------------------------------------ the job's thread

    def _watch(self, first: Started) -> None:
        words: list[str]
        try:
            _, words = asyncio.run(self._supervisor.run(first))
        except BaseException as error:
            words = [f"{type(error).__name__}: {error}"]
        finally:
            first.close()
            self._watched.set()
            self._started.set()
        self._console.close()
        self.over = [] if self._closing else words

    def _has_begun(self, attempt: Attempt) -> None:
        attempt.on_start = lambda: self._started.set() if len(attempt.pids) == self.size else None
        self._watched.set()

    def _heard(self, attempt: Attempt) -> None:
        for rank, data in attempt.results.items():
            while (record := unpack(data)) is not None:
                if record["number"] == READY:
                    self._ready.add(rank)
                    if rank in self._held:
                        attempt.interrupt([rank])
                    continue
                attempt.show_all_of(rank)  # what it has said before it answered comes first
                self._console.when_written(partial(self._put, Answer(rank, **record)))

    def _put(self, item: tuple[str, str] | Answer) -> None:
        """Waits while nobody reads what there is, unless nobody will."""
        while not self._closing:
            with contextlib.suppress(queue.Full):  # looks again whether anybody will
                self._inbox.put(item, timeout=0.1)
                return

    def say(self, stream: str, data: bytes) -> None:
        """A piece of the ranks' output, from the console's thread."""
        self._put((stream, data.decode("utf-8", "backslashreplace")))

    def _send(self, ranks: Sequence[int], record: Mapping[str, Any]) -> None:
        loop, data = self._supervisor.loop, pack(record)

        def send() -> None:
            assert loop is not None
            for rank in ranks:
                self._orders.send(loop, rank, data)

        self._soon(send)

    def _soon(self, call: Callable[[], Any]) -> None:
        loop = self._supervisor.loop
        if loop is not None:
            with contextlib.suppress(RuntimeError):  # it has just ended
                loop.call_soon_threadsafe(call)


class _Gathering:
    """One cell under way: shows and gathers until every rank has answered."""

    def __init__(self, crew: Crew, show: Show, deadline: float) -> None:
        self._crew, self._show, self._deadline = crew, show, deadline
        self._answers: dict[int, Answer] = {}
        self._number = crew.cells
        self._failed_at = float("inf")
        self._named = False
        self.interrupts = 0
        self._interrupted_at = float("inf")
        self.interrupted: set[int] = set()
        self.late: list[int] = []
        self.let_go = False
        """Whether ranks whose cell has failed have broken their groups, for the others to hear."""

    @property
    def _missing(self) -> list[int]:
        return [rank for rank in range(self._crew.size) if rank not in self._answers]

    def to_the_end(self) -> list[Answer]:
        while True:
            try:
                if not self._missing:
                    break
                self._step()
            except KeyboardInterrupt:
                self.interrupts += 1
                if self.interrupts > 1:
                    self._crew.kill()
                else:
                    self._interrupt()
        return [answer for _, answer in sorted(self._answers.items())]

    def _step(self) -> None:
        over = self._crew.over is not None  # before the last look: what was said before the end is shown
        item = self._crew.next(0.0 if over else 0.1)
        now = time.monotonic()
        if isinstance(item, Answer):
            if item.number == self._number:
                self._answers[item.rank] = item
                if item.error is not None:
                    self._failed_at = min(self._failed_at, now)
        elif item is not None:
            self._show(*item)
        elif over:
            if self.interrupts > 1:
                raise AiocollError("the second interrupt has ended all ranks, and with them what they held")
            raise AiocollError(f"{self._crew.cause}; all ranks have ended, and with them what they held")
        if now - self._failed_at > SETTLE_S:
            self._failed_at = float("inf")
            self.let_go = True
            for answer in self._answers.values():
                self._crew.let_go(answer)
        if now > self._deadline and self._missing:
            self._deadline = float("inf")
            self.late = self._missing
            self._interrupt()
        if now - self._interrupted_at > PATIENCE_S and not self._named and self._missing:
            self._named = True
            self._show("stderr", f"aiocoll: no reaction to the interrupt from {names(self._missing)}; "
                       "interrupt once more to end all ranks, and with them what they hold\n")  # fmt: skip

    def _interrupt(self) -> None:
        self._interrupted_at = time.monotonic()
        self.interrupted |= set(self._missing)
        self._crew.interrupt(self._missing)


class _Sink:
    """Where the console writes: to whoever runs the cell."""

    tty = False

    def __init__(self, crew: Crew, stream: str) -> None:
        self._crew, self._stream = crew, stream

    def __repr__(self) -> str:
        return f"_Sink({self._stream})"

    def write(self, data: bytes) -> None:
        self._crew.say(self._stream, data)


class _Supervisor(Supervisor):
    """Tells when the job has begun, and when a rank has handed something back."""

    def __init__(
        self,
        options: Options,
        recipe: Recipe,
        console: Console,
        heard: Callable[[Attempt], None],
        begun: Callable[[Attempt], None],
    ) -> None:
        super().__init__(options, recipe, console)
        self._heard, self._begun = heard, begun

    def new_attempt(self, started: Started, claim: Claim) -> Attempt:
        attempt = super().new_attempt(started, claim)
        attempt.on_change = partial(self._heard, attempt)
        self._begun(attempt)
        return attempt
