"""When a rank dumps what it knows: when a group breaks and a directory is set, and whenever SIGUSR2 comes.

The rule: a failure is never made slower by its dump: the state is copied at once, and written when the loop has time,
or at the latest when the connection closes or the program ends. SIGUSR2 is taken only where nobody else wants it.
"""

from __future__ import annotations

import asyncio
import atexit
import contextlib
import logging
import os
import signal
import sys
import threading
import traceback
from collections.abc import Callable
from types import FrameType
from typing import Any, Final

from .dump import text_of, write
from .flight import Flight

_PACKAGE: Final = os.path.dirname(os.path.dirname(__file__)) + os.sep
_log = logging.getLogger("aiocoll.trace")
_FAILURES_MAX: Final = 50
"""Dumps of failures per process: a program that breaks groups for ever must not fill a disk."""
_NUMBER: Final = getattr(signal, "SIGUSR2", None)

_open: list[Source] = []
_written = 0
_installed = False


class Source:
    """One connection of this process that can be dumped. ``snapshot(why, facts=)`` gives its state as plain data, with
    or without the facts of ``flight``; ``directory`` ("" for none) is where dumps go."""

    directory: str

    def __init__(self, snapshot: Callable[..., dict[str, Any]], flight: Flight, directory: str) -> None:
        self._snapshot, self._flight, self.directory = snapshot, flight, directory
        self._pending: tuple[dict[str, Any], list[Any]] | None = None
        self._last = 0.0
        _open.append(self)
        install()

    def __repr__(self) -> str:
        return f"<Source {'to ' + self.directory if self.directory else 'without a directory'}>"

    def failed(self, why: str, later: Callable[[Callable[[], None]], object]) -> None:
        """A group has broken: what is known now is kept, and written ``later``. What follows from one failure alone
        makes no second dump, which would only hide what stood in the first."""
        global _written
        if not self.directory or _written >= _FAILURES_MAX:
            return
        if self._last and not self._flight.succeeded_since(self._last):
            return
        self.flush()
        _written += 1
        self._last = self._flight.clock()
        self._pending = self._snapshot(why, facts=False), self._flight.kept()
        _register_exit()
        later(self.flush)

    def flush(self) -> None:
        """Writes what is pending."""
        pending, self._pending = self._pending, None
        if pending is not None and pending[0]["pid"] == os.getpid():
            self._write({**pending[0], "facts": self._flight.facts(pending[1])})

    def dump(self, why: str, frame: FrameType | None) -> dict[str, Any]:
        """The state now, with where the main thread is."""
        stack = "".join(traceback.format_stack(frame)).rstrip("\n").split("\n") if frame is not None else []
        return {**self._snapshot(why), "stack": stack, "place": _place(frame)}

    def show(self, dump: dict[str, Any]) -> None:
        """Into the directory; without one the text goes to stderr, past whatever has its hands on that now."""
        if self.directory:
            self._write(dump)
        else:
            with contextlib.suppress(OSError):  # nobody reads stderr: there is no other place
                os.write(2, text_of(dump).encode(errors="backslashreplace"))

    def _write(self, dump: dict[str, Any]) -> None:
        try:
            write(self.directory, _name(dump), dump)
        except OSError as error:
            _log.warning("rank %s cannot write its dump into %s: %s", dump["rank"], self.directory, error)

    def close(self) -> None:
        """The connection is closing."""
        self.flush()
        if self in _open:
            _open.remove(self)
        if not _open:
            put_back()


_names = 0


def _name(dump: dict[str, Any]) -> str:
    global _names
    _names += 1
    return f"rank{dump['rank']}-pid{dump['pid']}-{_names}"


# -- the signal


def install() -> None:
    """Takes SIGUSR2, if it has its default disposition and this is the main thread; again: nothing."""
    global _installed
    if _NUMBER is None or _installed or not _open or threading.current_thread() is not threading.main_thread():
        return
    if signal.getsignal(_NUMBER) is not signal.SIG_DFL or _taken_elsewhere(_NUMBER):
        return
    signal.signal(_NUMBER, _on_signal)
    _installed = True


def put_back() -> None:
    """Gives SIGUSR2 back, where it was taken and nobody has taken it since; for the main thread."""
    global _installed
    if not _installed or _open or threading.current_thread() is not threading.main_thread():
        return
    _installed = False
    if _NUMBER is not None and signal.getsignal(_NUMBER) is _on_signal:
        signal.signal(_NUMBER, signal.SIG_DFL)


def _taken_elsewhere(number: int) -> bool:
    """Whether something outside of Python (a C library, faulthandler) handles or ignores the signal."""
    try:
        with open("/proc/self/status", encoding="ascii", errors="replace") as status:
            masks = [line.split()[1] for line in status if line.startswith(("SigIgn:", "SigCgt:"))]
    except OSError:
        return False
    return any(int(mask, 16) >> (number - 1) & 1 for mask in masks)


def _on_signal(number: int, frame: FrameType | None) -> None:
    for source in list(_open):
        try:
            source.show(source.dump("asked for (SIGUSR2)", frame))
        except Exception:  # whatever is half done where the signal came: the program must not suffer for it
            _log.exception("a dump that SIGUSR2 asked for failed")


def _place(frame: FrameType | None) -> str:
    """Where the user's program is: the innermost line that is neither ours nor the event loop's."""
    loops = (_PACKAGE, os.path.dirname(asyncio.__file__) + os.sep)
    while frame is not None:
        code = frame.f_code
        if not code.co_filename.startswith(loops):
            return f"{code.co_filename}:{frame.f_lineno} in {code.co_name}"
        frame = frame.f_back
    return ""


# -- the end

_exits = False


def _register_exit() -> None:
    global _exits
    if not _exits:
        _exits = True
        atexit.register(flush_all)


def flush_all() -> None:
    """Writes every failure that is still to be written."""
    for source in list(_open):
        source.flush()


def _forked() -> None:
    """The child is no rank: the parent's connections, and the signal, are the parent's."""
    global _installed
    _open.clear()
    if _installed and _NUMBER is not None:
        _installed = False
        with contextlib.suppress(ValueError):  # not the main thread, which alone may
            signal.signal(_NUMBER, signal.SIG_DFL)


if hasattr(os, "register_at_fork") and sys.platform != "win32":
    os.register_at_fork(after_in_child=_forked)


__all__ = ["Source", "flush_all", "install", "put_back"]
