"""One attempt of a job on this host: watches over its ranks, shows what they say, ends them all when one fails.

Rule: policy lives here and in `verdict`; processes are the warden's, words the console's, other runners `nodes`'.

    running --first failure--> settling (survivors may say what they were in) --> ending: INT, TERM, KILL --> over
            --signal, deadline, closed pipe--> ending: INT, after the grace time KILL; a second signal: faster
            --a failure under "shrink"--> running without that rank, or with a process in its place (`replace`)
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import socket
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import IO, TYPE_CHECKING

from aiocoll.errors import AiocollError
from aiocoll.runner.chronicle import Result, merged, result_of
from aiocoll.runner.console import STREAMS, Console
from aiocoll.runner.lines import LineBuffer
from aiocoll.runner.processes import Processes
from aiocoll.runner.signals import UNREAD_CODE
from aiocoll.runner.traces import ANSWER_S, Traces
from aiocoll.runner.verdict import Ending, Report, Verdict, decode, names, summary, whereabouts

if TYPE_CHECKING:
    from aiocoll.runner.replace import Replacements

SETTLE_S = 0.5
"""A failing rank's peers notice by themselves; so long they may say what they were in before they are interrupted."""
CAUSE_WAIT_S = 1.0
"""When only consequences have ended, their cause is about to follow."""
UNKILLABLE_S = 5.0
PARTIAL_S = 0.1
TAIL_LINES, TAIL_CHARS = 200, 2000
TIMEOUT_CODE = 124

WHY = {
    TIMEOUT_CODE: "the job's --timeout passed",
    129: "hangup (HUP)",
    130: "interrupted (Ctrl-C)",
    UNREAD_CODE: "left without a reader of its output (a closed pipe)",
    143: "terminated (TERM)",
}

Step = tuple[float, signal.Signals]


class Attempt:
    """The ranks of this runner from start to end, once; `Listener` of their `Processes`.

    A replacement belongs to `Processes` of its own; ``_owners`` tells whose each rank's present process is.
    """

    console: Console
    size: int
    job: str
    grace: float
    failure_grace: float

    def __init__(
        self,
        processes: Processes,
        ranks: Sequence[int],
        console: Console,
        *,
        size: int,
        on_failure: str = "kill",
        grace: float,
        failure_grace: float,
        logs: Mapping[tuple[int, str], IO[bytes]] | None = None,
        traces: Traces | None = None,
        job: str = "",
    ) -> None:
        self.console, self.size, self.job = console, size, job
        self.ranks: list[int] = list(ranks)
        self.verdict: Verdict = Verdict(on_failure)
        self.grace, self.failure_grace = grace, failure_grace
        self.stopped: int | None = None
        """The exit code of what ended the job from outside: a signal, the deadline, a closed pipe, another runner."""
        self.results: dict[int, bytearray] = {rank: bytearray() for rank in ranks}
        self.host: str = socket.gethostname()
        self.on_ending: Callable[[], None] = lambda: None
        """Called when a rank has failed or the job was stopped, before the other ranks are ended."""
        self.on_start: Callable[[], None] = lambda: None
        """Called when a rank has been started."""
        self.on_change: Callable[[], None] = lambda: None
        """Called when a rank has ended, been replaced, handed something back, or said something of itself."""
        self.replacements: Replacements | None = None
        self.logs: dict[tuple[int, str], IO[bytes]] = dict(logs or {})
        self.traces = traces
        self.findings: list[str] = []
        """What the ranks' dumps say together, if that was asked."""
        self._began = self._ended_at = time.time()
        self._lines = {(rank, stream): LineBuffer() for rank in ranks for stream in STREAMS}
        self._tails: dict[int, deque[str]] = {rank: deque(maxlen=TAIL_LINES) for rank in ranks}
        self._herds: list[Processes] = [processes]
        self._owners: dict[int, Processes] = dict.fromkeys(self.ranks, processes)
        self._pids: dict[int, int] = {}
        self._numbers: dict[int, int] = {}
        self._flushes: dict[tuple[int, str], asyncio.TimerHandle] = {}
        self._timers: list[asyncio.TimerHandle] = []
        self._settling: tuple[float, asyncio.TimerHandle] | None = None
        self._asked = False
        self._presses = 0
        self._over = asyncio.Event()

    def __repr__(self) -> str:
        return f"Attempt(running={sorted(self.running)}, asked={self._asked}, stopped={self.stopped})"

    @property
    def running(self) -> list[int]:
        return [rank for rank in self.ranks if rank not in self.verdict.endings]

    def is_ending(self) -> bool:
        """Whether the ranks are being ended."""
        return self._asked

    async def run(self) -> None:
        """Returns when every rank has ended (or cannot be ended) and the console has all that it said."""
        self._loop = asyncio.get_running_loop()
        self.verdict.started = self._loop.time()
        self.console.on_low = lambda: self._from_thread(lambda: self._pause(False))
        self.console.on_dead = lambda streams: self._from_thread(lambda: self._stop_reading(streams))
        for processes in self._herds:
            processes.watch(self._loop, self)
        try:
            await self._over.wait()
            self._say_what_dumps_say()
        finally:
            for timer in (*self._timers, *self._flushes.values(), *((self._settling[1],) if self._settling else ())):
                timer.cancel()
            if self.replacements is not None:
                await self.replacements.close()
            for processes in self._herds:
                processes.close()
                processes.reap(1.0)

    def adopt(self, rank: int, processes: Processes, number: int) -> None:
        """The `number`-th replacement has been started in place of `rank`, which has failed."""
        for ended in [each for each in self._herds if each.done]:
            ended.reap(1.0)  # its warden has said that it ends
            self._herds.remove(ended)
        self._herds.append(processes)
        self._owners[rank], self._numbers[rank] = processes, number
        self._tails[rank].clear()
        self.verdict.replace(rank, number)
        processes.watch(self._loop, self)

    def signal(self, number: int, *, group: bool = True) -> None:
        """Passes a signal to all ranks that live."""
        for processes in self._herds:
            processes.signal(number, group=group)

    def interrupt(self, ranks: Sequence[int]) -> None:
        """Ctrl-C for some ranks, which may go on afterwards."""
        for rank in ranks:
            self._owners[rank].signal(signal.SIGINT, [rank])

    @property
    def pids(self) -> dict[int, int]:
        """Of the ranks that have been started."""
        return dict(self._pids)

    def _pause(self, paused: bool) -> None:
        for processes in self._herds:
            processes.pause(paused)

    def _stop_reading(self, streams: Sequence[str]) -> None:
        for processes in self._herds:
            processes.stop_reading(streams)

    def _from_thread(self, call: Callable[[], None]) -> None:
        with contextlib.suppress(RuntimeError):  # the loop has ended
            self._loop.call_soon_threadsafe(call)

    # -- ending them --------------------------------------------------------------------------------------------------

    def stop(self, code: int) -> None:
        """Somebody wants the job to end; again: faster."""
        if self._over.is_set():
            return
        if self.stopped is None and not self._asked:
            self.stopped = code
            self.on_ending()
        self._presses += 1
        if self._presses == 1 and not self._asked:
            after = 0.0
            if code == TIMEOUT_CODE and self.traces is not None and len(self.ranks) > 1:
                self.traces.ask([pid for rank, pid in self._pids.items() if rank in self.running])
                after = ANSWER_S
            self._end([(after, signal.SIGINT), (after + self.grace, signal.SIGKILL)])
        elif self._presses <= 2:
            self._end([(0.0, signal.SIGTERM), (min(self.grace, 3.0), signal.SIGKILL)])
        else:
            self._end([(0.0, signal.SIGKILL)])

    def end_for_failure(self) -> None:
        """One rank's failure (here or elsewhere) is everybody's end."""
        if not self._asked:
            grace = self.failure_grace
            self._end([(0.0, signal.SIGINT), (grace / 2, signal.SIGTERM), (grace, signal.SIGKILL)])

    def end_idle(self) -> None:
        """Ends replacements for which the others have no use any more; TERM, for an INT would make them tell it."""
        if not self._asked:
            self._end([(0.0, signal.SIGTERM), (self.failure_grace, signal.SIGKILL)])

    def _end(self, steps: Sequence[Step]) -> None:
        if not self._asked:
            self._ended_at = time.time() + steps[0][0]
        self._asked = True
        for timer in self._timers:
            timer.cancel()
        self._timers = [self._loop.call_later(after, self.signal, number) for after, number in steps]
        self._timers.append(self._loop.call_later(steps[-1][0] + UNKILLABLE_S, self._give_up))

    def _give_up(self) -> None:
        stuck = [f"{rank} (pid {self._pids.get(rank, 0)})" for rank in self.running]
        if stuck:
            self.console.say(f"aiocoll: not even KILL ended rank {', '.join(stuck)}; leaving it to the kernel")
        self._over.set()

    def _settle(self, seconds: float) -> None:
        """Ends the ranks in a moment, or earlier if an earlier call said so."""
        at = self._loop.time() + seconds
        if self._asked or (self._settling is not None and self._settling[0] <= at):
            return
        if self._settling is not None:
            self._settling[1].cancel()
        self._settling = (at, self._loop.call_at(at, self.end_for_failure))

    # -- Listener -----------------------------------------------------------------------------------------------------

    def on_started(self, rank: int, pid: int) -> None:
        self._pids[rank] = pid
        number = self._numbers.get(rank, 0)
        self.verdict.started_as(rank, number, pid)
        self.console.event("start", rank=rank, pid=pid, host=self.host, replacement=number)
        self.on_start()

    def on_word(self, rank: int, word: str) -> None:
        if self.replacements is not None:
            self.replacements.heard(rank, word)
            self.on_change()

    def on_not_started(self, rank: int, error: int) -> None:
        number = self._numbers.get(rank, 0)
        self._ended(Ending(rank, 127, self._loop.time(), asked=self._asked, start_errno=error, number=number))

    def on_exit(self, rank: int, code: int, at: float, report: bytes) -> None:
        rest = self._lines[rank, "stderr"]
        tail = [*self._tails[rank], *([_text(rest.peek())] if len(rest) else [])]
        pid, number = self._pids.get(rank, 0), self._numbers.get(rank, 0)
        self._ended(Ending(rank, code, at, pid, Report.parse(report), tuple(tail), self._asked, number=number))

    def _ended(self, ending: Ending) -> None:
        self.verdict.add(ending)
        self.console.event("exit", rank=ending.rank, pid=ending.pid, code=ending.exit_code, how=decode(ending.code))
        if ending.failed and not self._asked:
            if self.verdict.on_failure != "shrink":
                self._settle(CAUSE_WAIT_S if self.verdict.only_consequences else SETTLE_S)
                self.on_ending()
            elif self.replacements is not None:
                self.replacements.consider(ending)
        self.on_change()

    def on_output(self, rank: int, stream: str, data: bytes) -> None:
        key = rank, stream
        log = self.logs.get(key)
        if log is not None and data:
            with contextlib.suppress(OSError):  # a full disk must not end the job
                log.write(data)
        lines = self._lines[key]
        pieces = lines.feed(data)
        if not data and len(lines):
            pieces.append(lines.flush())
        if stream == "stderr":
            self._tails[rank].extend(_text(piece) for piece in pieces[-TAIL_LINES:])
        if self.console.raw:
            self.console.output(rank, stream, [data])
        else:
            self.console.output(rank, stream, pieces, final=not data)
            self._flush_later(key, wanted=bool(len(lines)) and self.console.tty(stream))
        if self.console.full:
            self._pause(True)

    def _flush_later(self, key: tuple[int, str], *, wanted: bool) -> None:
        """On a terminal an unfinished line (a prompt, a progress bar) is shown after a moment."""
        if timer := self._flushes.pop(key, None):
            timer.cancel()
        if wanted:
            self._flushes[key] = self._loop.call_later(PARTIAL_S, self._flush, key)

    def _flush(self, key: tuple[int, str]) -> None:
        self._flushes.pop(key, None)
        if len(self._lines[key]):
            self.console.output(*key, [self._lines[key].flush()])

    def on_result(self, rank: int, data: bytes) -> None:
        self.results[rank] += data
        self.on_change()

    def show_all_of(self, rank: int) -> None:
        """Shows what the rank has written by now, an unfinished line too."""
        self._owners[rank].read_streams(rank)
        for stream in STREAMS:
            if len(lines := self._lines[rank, stream]):
                self.console.output(rank, stream, [lines.flush()], final=True)

    def on_stuck(self, pids: Sequence[int]) -> None:
        self.console.say(f"aiocoll: processes started by ranks could not be ended: {', '.join(map(str, pids))}")

    def on_done(self, processes: Processes, complete: bool) -> None:
        if not complete:  # somebody killed the warden; the kernel has killed the ranks then
            for rank in [rank for rank in self.running if self._owners[rank] is processes]:
                pid, number = self._pids.get(rank, 0), self._numbers.get(rank, 0)
                at = self._loop.time()
                self._ended(Ending(rank, -signal.SIGKILL, at, pid, asked=self._asked, number=number))
        self.look_whether_over()

    def look_whether_over(self) -> None:
        """It is when all processes have ended and no other is about to be started."""
        if all(processes.done for processes in self._herds) and not (self.replacements and self.replacements.pending):
            self._over.set()

    def _say_what_dumps_say(self) -> None:
        """Above the last words, after a failure of several ranks or a deadline: what their dumps say together."""
        failed = sum(ending.failed for ending in self.verdict.endings.values())
        if self.traces is not None and self.exit_code and (self.stopped == TIMEOUT_CODE or failed > 1):
            all_here = self.size == len(self.ranks)
            self.findings = self.traces.words(self.job, self._began, self._ended_at, all_here=all_here)
            for line in self.findings if self.traces.said else ():
                self.console.say(f"aiocoll: {line}")

    # -- afterwards ---------------------------------------------------------------------------------------------------

    @property
    def exit_code(self) -> int:
        return self.stopped if self.stopped is not None else self.verdict.exit_code

    def result(self, *, over: bool = True) -> Result:
        """How the ranks here have fared, for what is said of all."""
        running = self.running if self._over.is_set() else ()
        clocks = time.time() - time.monotonic()
        return result_of(self.verdict, size=self.size, host=self.host, clocks=clocks, running=running, over=over)

    def last_words(self) -> list[str]:
        """What is said at the very end: how it was stopped, or the cause."""
        running = self.running if self._over.is_set() else ()
        if self.stopped is None and self.verdict.on_failure == "shrink":
            return merged([self.result()])[1]
        if self.stopped is None:
            return summary(self.verdict, size=self.size, host=self.host, running=running)
        lines = [f"aiocoll: {line}" for line in whereabouts(self.verdict)] if self.size > 1 else []
        if self.running and self._over.is_set():
            lines.append(f"aiocoll: {names(self.running)} could not be ended")
        return [*lines, f"aiocoll: {WHY.get(self.stopped, 'stopped')}; exit code {self.stopped}"]


def _text(line: bytes) -> str:
    return line.rstrip(b"\r\n").decode(errors="backslashreplace")[-TAIL_CHARS:]


def open_logs(directory: str, ranks: Sequence[int], restart: int) -> dict[tuple[int, str], IO[bytes]]:
    """r0.stdout.log and so on; a restart writes on where the attempt before it ended."""
    try:
        os.makedirs(directory, exist_ok=True)
        mode = "ab" if restart else "wb"
        return {
            (rank, stream): open(os.path.join(directory, f"r{rank}.{stream}.log"), mode, buffering=0)
            for rank in ranks
            for stream in STREAMS
        }
    except OSError as error:
        raise AiocollError(f"--log-dir {directory!r}: {error.strerror}: {error.filename}") from error
