"""The signals of a runner's process: those that end the job, those that the ranks get, and Ctrl-Z.

Rule: what was ignored when we started stays ignored, and no signal is lost between the first line and the event loop.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import asyncio

    from aiocoll.runner.job import Attempt

UNREAD_CODE: int = 128 + signal.SIGPIPE
"""What a shell has for a command that SIGPIPE has ended, and we for one whose output nobody reads any more."""
STOPPED = (124, 129, 130, UNREAD_CODE, 143)
"""Exit codes of a job that a deadline, a signal or a closed pipe ended, not a failure: its ranks have the whole grace
time."""
STOPPING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class EarlySignals:
    """Remembers signals that come while the ranks start and asyncio is still being imported."""

    def __init__(self) -> None:
        self.came: list[int] = []
        for number in STOPPING:
            if signal.getsignal(number) is not signal.SIG_IGN:
                signal.signal(number, lambda number, _: self.came.append(number))

    def __repr__(self) -> str:
        return f"EarlySignals({self.came})"


class Signals:
    """Hands the signals of this process to the current attempt; only for the main thread's loop."""

    def __init__(self, loop: asyncio.AbstractEventLoop, early: EarlySignals) -> None:
        self._loop, self._early = loop, early
        self._installed: list[signal.Signals] = []
        self.attempt: Attempt | None = None
        self.stopped: int | None = None
        """The exit code that the first such signal means."""
        self.arrived: asyncio.Event = _event()

    def __enter__(self) -> Signals:
        for number in STOPPING:
            # What was ignored when we started (HUP under nohup, INT of a shell's background job) stays ignored.
            if signal.getsignal(number) is not signal.SIG_IGN:
                self._install(number, self.stop, 128 + number)
        for number in (signal.SIGQUIT, signal.SIGUSR1, signal.SIGUSR2):
            self._install(number, self._pass_on, number)
        if signal.getsignal(signal.SIGTSTP) is not signal.SIG_IGN:
            self._install(signal.SIGTSTP, self._suspend)
        for came in self._early.came:
            self._loop.call_soon(self.stop, 128 + came)
        return self

    def __exit__(self, *_: object) -> None:
        for number in self._installed:
            self._loop.remove_signal_handler(number)

    def _install(self, number: signal.Signals, call: Callable[..., None], *args: Any) -> None:
        self._loop.add_signal_handler(number, call, *args)
        self._installed.append(number)

    def stop(self, code: int) -> None:
        """Ends the job as a signal does."""
        self.stopped = self.stopped or code
        self.arrived.set()
        if self.attempt is not None:
            self.attempt.stop(code)

    def _pass_on(self, number: signal.Signals) -> None:
        if self.attempt is not None:
            self.attempt.signal(number, group=number == signal.SIGQUIT)

    def _suspend(self) -> None:
        """Ctrl-Z stops the ranks with us, fg and bg wake them."""
        if self.attempt is not None:
            self.attempt.signal(signal.SIGSTOP)
        os.kill(os.getpid(), signal.SIGSTOP)
        if self.attempt is not None:
            self.attempt.signal(signal.SIGCONT)


def _event() -> asyncio.Event:
    import asyncio

    return asyncio.Event()
