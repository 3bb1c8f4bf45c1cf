"""Ctrl-C while a blocking call moves bytes: KeyboardInterrupt comes a moment later, when nothing is half done.

Python raises it between any two instructions of the main thread. In the middle of a frame that loses the place in the
stream, and the peer, or another group, is blamed for what follows; in the middle of a driver it leaves a lock behind.
The rule: only Python's own handler is replaced, only while there are blocking groups, and every Ctrl-C arrives: in a
turn of the loop, or when the call is over; a second one, a second later, where it finds the program.
"""

from __future__ import annotations

import _thread
import contextlib
import os
import signal
import threading
import time
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any, Final

from .stepping import Latch, outcome

if TYPE_CHECKING:
    from .drivers import Driver

_PACKAGE: Final = Path(__file__).resolve().parents[1]
_ROOMS: Final = ("algorithms", "buffers", "endpoint", "group", "rendezvous", "store", "transport", "wire", "world")
_BUSY: Final = (str(_PACKAGE / "sync" / "drivers.py"), *(f"{_PACKAGE / room}{os.sep}" for room in _ROOMS))
"""Where code lies that must not end half-way. A loop that it runs may, between two callbacks."""
_WAITING: Final = str(_PACKAGE / "sync" / "work.py")
"""Where a thread only waits for another one, which has the loop; as it does in ``_WAITS``."""
_WAITS: Final = (outcome.__code__, Latch.wait.__code__)
_REMIND_SECONDS: Final = 0.001
_SECOND_SECONDS: Final = 1.0  # what comes earlier is the same one: a terminal's, and a runner's that passes it on
_PATIENCE_SECONDS: Final = 5.0  # for a function of the user's that computes inside a call


class Interrupts:
    """The handler of SIGINT."""

    def __init__(self) -> None:
        self._drivers: dict[int, Driver] = {}
        self.pending: bool = False
        """Whether a Ctrl-C waits for a good moment."""
        self._since = 0.0
        self._again = False
        """Whether the next signal is our own reminder."""

    def __repr__(self) -> str:
        return f"<Interrupts for {len(self._drivers)} drivers{', one waits' if self.pending else ''}>"

    def guard(self, driver: Driver) -> None:
        """From now on, if this is the main thread, where signals arrive, and nobody else handles Ctrl-C."""
        if threading.current_thread() is not threading.main_thread():
            return
        if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
            signal.signal(signal.SIGINT, self._handle)
        self._drivers[id(driver)] = driver

    def release(self, driver: Driver) -> None:
        """That one is at its end; with the last one goes the handler, unless a Ctrl-C still has to arrive."""
        self._drivers = {id(each): each for each in self._drivers.values() if each is not driver and not each.ended}
        if self.pending or threading.current_thread() is not threading.main_thread():
            return
        if not self._drivers and signal.getsignal(signal.SIGINT) == self._handle:
            signal.signal(signal.SIGINT, signal.default_int_handler)

    def arrive(self) -> None:
        """A call is over: raises KeyboardInterrupt if a Ctrl-C waits."""
        if self.pending and threading.current_thread() is threading.main_thread():
            self._raise()

    def forget(self) -> None:
        """What waits shall not arrive any more: whom it was meant for has ended."""
        if self.pending:
            self.pending = False
            self._ask(False)

    def _handle(self, number: int, frame: FrameType | None) -> None:
        reminder, self._again = self._again, False
        if reminder and not self.pending:
            return  # it has arrived in the meantime
        waited = time.monotonic() - self._since if self.pending else 0.0
        if waited > (_PATIENCE_SECONDS if reminder else _SECOND_SECONDS) or not _busy(frame):
            self._raise()
        for driver in list(self._drivers.values()):
            driver.listen_soon()
        if not self.pending:
            self.pending, self._since = True, time.monotonic()
            self._ask(True)
            for driver in list(self._drivers.values()):
                with contextlib.suppress(RuntimeError):  # its loop is closed
                    driver.loop.call_soon_threadsafe(self._arrive_in, driver)
            _thread.start_new_thread(self._remind, (threading.get_ident(),))

    def _arrive_in(self, driver: Driver) -> None:
        if driver.inline:
            self.arrive()

    def _raise(self) -> None:
        self.pending = False
        self._ask(False)
        raise KeyboardInterrupt

    def _ask(self, wanted: bool) -> None:
        """Asks those who look for their peers' frames to go and wait instead."""
        for driver in list(self._drivers.values()):
            for endpoint in driver.endpoints:
                endpoint.interrupted = wanted

    def _remind(self, main: int) -> None:
        while signal.getsignal(signal.SIGINT) == self._handle and self.pending:
            time.sleep(_REMIND_SECONDS)
            if self.pending:
                self._again = True
                signal.pthread_kill(main, signal.SIGINT)

    def forked(self) -> None:
        """In the child, whose drivers are its parent's."""
        self._drivers, self.pending = {}, False


def _busy(frame: FrameType | None) -> bool:
    while frame is not None:
        name = frame.f_code.co_filename
        if name.startswith(_BUSY):
            return True
        if name == _WAITING or frame.f_code in _WAITS:
            return False
        frame = frame.f_back
    return False


INTERRUPTS: Final[Any] = Interrupts()
os.register_at_fork(after_in_child=INTERRUPTS.forked)
