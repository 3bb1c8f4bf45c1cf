"""Tells the runner why this rank ends: the uncaught exception, its traceback, and the call that it came out of.

Rule: it only watches. The exception takes its way as without a runner, nothing is printed here, and a runner that does
not listen any more changes nothing. Ranks without a runner (no AIOCOLL_ERROR_FD) are left alone.
"""

from __future__ import annotations

import contextlib
import json
import os
import sys
import time
import traceback
from collections.abc import Iterator
from types import TracebackType
from typing import Any

from aiocoll.errors import GroupBrokenError, PeerLostError

VARIABLE = "AIOCOLL_ERROR_FD"
TEXT_CHARS_MAX = 24_000  # with its JSON escapes a report still fits a pipe that nobody reads yet

COLLECTIVES = frozenset(
    "barrier broadcast reduce all_reduce gather all_gather scatter reduce_scatter all_to_all scan exscan "
    "broadcast_object gather_object all_gather_object scatter_object all_to_all_object send recv".split()
)
_CONSEQUENCES = (PeerLostError, GroupBrokenError)
_PACKAGE = os.path.dirname(os.path.dirname(__file__)) + os.sep
_installed: int | None = None


def install() -> None:
    """Reports uncaught exceptions of this process from now on; again, or without a runner: nothing."""
    global _installed
    fd = _descriptor()
    if fd is None or _installed == os.getpid():
        return
    _installed = pid = os.getpid()
    previous = sys.excepthook

    def report_first(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> Any:
        if os.getpid() == pid:  # a forked child is no rank
            send(fd, error)
        return previous(kind, error, trace)

    sys.excepthook = report_first


def send_to_runner(error: BaseException) -> None:
    """Reports an exception that is caught, so that no hook will see it."""
    if (fd := _descriptor()) is not None:
        send(fd, error)


def tell(word: str) -> None:
    """Lets the runner know where this rank stands: ``connecting``, ``waiting`` (to be taken in) or ``met``."""
    if (fd := _descriptor()) is not None:
        with contextlib.suppress(OSError):  # a runner that is gone asks no more
            os.write(fd, word.encode() + b"\n")


def _descriptor() -> int | None:
    text = os.environ.get(VARIABLE, "")
    if not text.isdigit():
        return None
    fd = int(text)
    try:
        # A process that a rank starts has the variable but not the pipe, and our children need neither.
        if not os.path.exists("/proc/self/fd") or os.readlink(f"/proc/self/fd/{fd}").startswith("pipe:"):
            os.set_inheritable(fd, False)
            return fd
    except OSError:
        pass  # it is closed
    return None


def send(fd: int, error: BaseException) -> None:
    """Writes one report, see `describe`."""
    with contextlib.suppress(Exception):  # the error itself ends this rank, told or not
        data = json.dumps(describe(error)).encode() + b"\n"
        while data:
            data = data[os.write(fd, data) :]


def describe(error: BaseException) -> dict[str, Any]:
    """``class message traceback operation consequence time``: what the runner wants to know of an exception."""
    kind = type(error)
    text = "".join(traceback.format_exception(error))
    return {
        "class": kind.__qualname__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__qualname__}",
        "message": _cut(_text_of(error)),
        "traceback": _cut(text),
        "operation": operation_of(error),
        "consequence": is_consequence(error),
        "time": time.monotonic(),
    }


def is_consequence(error: BaseException) -> bool:
    """Whether this is only how another rank's failure looks from here."""
    leaves = list(_leaves(error))
    return bool(leaves) and all(any(isinstance(link, _CONSEQUENCES) for link in _chain(leaf)) for leaf in leaves)


def operation_of(error: BaseException) -> str:
    """The call that the exception came out of, "" if it was none of ours.

    Errors of ours know it; of an interrupt, the traceback tells: the innermost frame of ours that runs a call.
    """
    links = [link for leaf in _leaves(error) for link in _chain(leaf)]
    for link in links:
        if named := getattr(link, "operation", ""):
            return str(named)
    found = ""
    for link in links:
        for frame, _ in traceback.walk_tb(link.__traceback__):
            code = frame.f_code
            if code.co_filename.startswith(_PACKAGE) and code.co_filename != __file__:
                label = getattr(frame.f_locals.get("call"), "label", None)
                if isinstance(label, str):
                    return label
                found = found or (code.co_name if code.co_name in COLLECTIVES else "")
    return found


def _leaves(error: BaseException) -> Iterator[BaseException]:
    if isinstance(error, BaseExceptionGroup):
        for inner in error.exceptions:
            yield from _leaves(inner)
    else:
        yield error


def _chain(error: BaseException) -> Iterator[BaseException]:
    """The exception and what led to it, as a traceback shows it."""
    seen: set[int] = set()
    link: BaseException | None = error
    while link is not None and id(link) not in seen:
        seen.add(id(link))
        yield link
        link = link.__cause__ or (None if link.__suppress_context__ else link.__context__)


def _text_of(error: BaseException) -> str:
    try:
        return str(error)
    except Exception:  # a broken __str__ must not hide the rest
        return f"<{type(error).__name__} without a readable message>"


def _cut(text: str) -> str:
    """The end says what happened."""
    return text if len(text) <= TEXT_CHARS_MAX else "[...]\n" + text[-TEXT_CHARS_MAX:]
