"""What a person (or a program that reads --json) sees of a job: whole lines, each behind its rank's prefix.

Rule: one thread writes, in the order of the calls, so a slow reader of our output blocks neither the store nor the
signals of the job; `full` tells the readers of the ranks' pipes when to pause, which passes the pressure on.
"""

from __future__ import annotations

import contextlib
import json
import os
import queue
import threading
from base64 import b64encode
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol, TextIO

BACKLOG_BYTES_HIGH, BACKLOG_BYTES_LOW = 8 << 20, 1 << 20
COLOURS = (36, 33, 32, 35, 34, 96, 93, 92, 95, 94)  # readable on dark and on light ground
STREAMS = ("stdout", "stderr")


class Sink(Protocol):
    """Where bytes go; `write` raises OSError when nobody reads them any more."""

    tty: bool

    def write(self, data: bytes) -> None: ...


class FileSink:
    """A descriptor of this process."""

    def __init__(self, fd: int) -> None:
        self._fd = fd
        self.tty: bool = os.isatty(fd)

    def __repr__(self) -> str:
        return f"FileSink({self._fd}, tty={self.tty})"

    def write(self, data: bytes) -> None:
        view = memoryview(data)
        while view:
            try:
                view = view[os.write(self._fd, view) :]
            except BlockingIOError:  # somebody made the shared descriptor non-blocking
                self._wait()

    def _wait(self) -> None:
        import select

        select.select([], [self._fd], [], 1.0)


class TextSink:
    """A text stream that is not backed by the descriptor one expects: a notebook's, or a test's."""

    tty = False

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def __repr__(self) -> str:
        return f"TextSink({self._stream!r})"

    def write(self, data: bytes) -> None:
        try:
            self._stream.write(data.decode("utf-8", "backslashreplace"))
            self._stream.flush()
        except ValueError as error:  # closed
            raise OSError(str(error)) from error


class Console:
    """Prefixes, colours, events; see the module's docstring for who writes."""

    def __init__(
        self,
        out: Sink,
        err: Sink,
        *,
        prefixed: bool,
        events: bool = False,
        shown: Callable[[int], bool] = lambda rank: True,
        environ: Mapping[str, str] = os.environ,
    ) -> None:
        self._sinks = {"stdout": out, "stderr": err}
        self._prefixed, self._events, self._shown = prefixed, events, shown
        self._colours = not environ.get("NO_COLOR")
        self._open: dict[str, tuple[int, str]] = {}  # sink key -> whose unfinished line the cursor is in
        self._dead: set[str] = set()
        self._queue: queue.SimpleQueue[tuple[str, bytes] | Callable[[], None] | None] = queue.SimpleQueue()
        self._lock = threading.Lock()
        self._backlog = 0
        self.on_low: Callable[[], None] = lambda: None
        self.on_dead: Callable[[Sequence[str]], None] = lambda streams: None
        """Called (any thread) with the streams of the ranks that nobody can read any more."""
        self.on_unread: Callable[[], None] | None = None
        """Called (any thread), if there is one, when a pipe of ours has lost its reader; nothing is shown from then
        on, for whoever wanted to see it is gone."""
        self.unread: bool = False
        """Whether that has happened."""
        self._thread = threading.Thread(target=self._write_all, name="aiocoll console", daemon=True)
        self._thread.start()

    def __repr__(self) -> str:
        return f"Console({self._sinks}, backlog={self._backlog})"

    # -- what is shown ----------------------------------------------------------------------------------------------

    def tty(self, stream: str) -> bool:
        return self._sinks[stream].tty

    @property
    def raw(self) -> bool:
        """True when a lone rank's bytes pass through untouched."""
        return not self._prefixed and not self._events

    def output(self, rank: int, stream: str, pieces: list[bytes], *, final: bool = False) -> None:
        """Shows pieces of one stream of one rank (see `LineBuffer`); `final` ends an unfinished line."""
        if not self._shown(rank) or not pieces:
            return
        if self._events:
            for piece in pieces:
                self.event("output", rank=rank, stream=stream, **_as_text(piece))
        elif not self._prefixed:
            self._put(stream, b"".join(pieces))
        elif self._sinks[stream].tty:
            self._put(stream, b"".join(self._on_terminal(rank, stream, pieces, final)))
        else:
            prefix = b"[r%d] " % rank
            self._put(stream, b"".join(prefix + _whole(piece) for piece in pieces if piece != b"\r"))

    def _on_terminal(self, rank: int, stream: str, pieces: list[bytes], final: bool) -> list[bytes]:
        """An unfinished line (a prompt, a bar) is shown as it is; another rank's line begins below it."""
        key, mine = self._screen(stream), (rank, stream)
        prefix = self._prefix(rank)
        shown: list[bytes] = []
        for piece in pieces:
            if self._open.get(key) != mine:
                if piece == b"\r":
                    continue
                if self._open.pop(key, None) is not None:
                    shown.append(b"\n")
                shown.append(prefix)
            shown.append(piece)
            if piece.endswith((b"\n", b"\r")):
                self._open.pop(key, None)
            else:
                self._open[key] = mine
        if final and self._open.get(key) == mine:
            del self._open[key]
            shown.append(b"\n")
        return shown

    def _screen(self, stream: str) -> str:
        return "both" if self._sinks["stdout"].tty and self._sinks["stderr"].tty else stream

    def _prefix(self, rank: int) -> bytes:
        if not self._colours:
            return b"[r%d] \x1b[K" % rank
        return b"\x1b[%dm[r%d]\x1b[0m \x1b[K" % (COLOURS[rank % len(COLOURS)], rank)

    def say(self, text: str) -> None:
        """The runner's own words, on stderr; with --json they are events and nothing else is printed."""
        if self._events:
            return
        lines = text.rstrip("\n") + "\n"
        start = "\n" if self._open.pop(self._screen("stderr"), None) is not None else ""
        self._put("stderr", (start + lines).encode("utf-8", "backslashreplace"))

    def event(self, kind: str, **facts: Any) -> None:
        """One line of the --json stream; nothing without --json."""
        if self._events:
            self._put("stdout", json.dumps({"event": kind, **facts}).encode() + b"\n")

    # -- writing ----------------------------------------------------------------------------------------------------

    @property
    def full(self) -> bool:
        """True while the readers of the ranks' pipes shall pause; `on_low` (any thread) ends the pause."""
        return self._backlog > BACKLOG_BYTES_HIGH

    def _put(self, stream: str, data: bytes) -> None:
        if data and stream not in self._dead:
            with self._lock:
                self._backlog += len(data)
            self._queue.put((stream, data))

    def when_written(self, call: Callable[[], None]) -> None:
        """Calls `call`, in the thread that writes, when everything said so far is written."""
        self._queue.put(call)

    def _write_all(self) -> None:
        while (item := self._queue.get()) is not None:
            if not isinstance(item, tuple):
                item()
                continue
            stream, data = item
            if stream not in self._dead:
                try:
                    self._sinks[stream].write(data)
                except OSError as error:  # the reader went away, or the terminal hung up
                    self._lost(stream, error)
            with self._lock:
                before, self._backlog = self._backlog, self._backlog - len(data)
            if before > BACKLOG_BYTES_LOW >= self._backlog:
                self.on_low()

    def _lost(self, stream: str, error: OSError) -> None:
        if self.on_unread is not None and isinstance(error, BrokenPipeError):
            self._dead.update(STREAMS)
            self.unread = True
            self.on_unread()
        else:
            self._dead.add(stream)
            self.on_dead(STREAMS if self._events else [stream])

    def close(self, timeout: float | None = None) -> None:
        """Everything said so far is written (or `timeout` seconds have passed)."""
        with contextlib.suppress(RuntimeError):
            self._queue.put(None)
            self._thread.join(timeout)


def _whole(piece: bytes) -> bytes:
    """In a file or a pipe every piece is a line: a bar's redraws stand below one another instead of overwriting."""
    if piece.endswith(b"\r\n") or piece.endswith(b"\n"):
        return piece
    return piece.removesuffix(b"\r") + b"\n"


def _as_text(piece: bytes) -> dict[str, str]:
    """A line as JSON text; bytes that are not UTF-8 come along as base64 too."""
    try:
        return {"text": piece.decode()}
    except UnicodeDecodeError:
        return {"text": piece.decode(errors="backslashreplace"), "base64": b64encode(piece).decode()}
