"""Fences by the kernel, membarrier(2), and the test that they hold here; run as a script, this is the other side of it.

One call makes every running thread of every registered process pass a full barrier. So whoever writes orders both
sides: what a reader's processor has read too early, it has read before that barrier, and sees again what came before.

The rule: nothing but the standard library, since the other side is started as a bare script.
"""

from __future__ import annotations

import ctypes
import mmap
import os
import platform
import subprocess
import sys
import time
from collections.abc import Callable
from typing import Any, Final, Protocol

_REGISTER: Final = 1 << 2
_FENCE: Final = 1 << 1
"""MEMBARRIER_CMD_REGISTER_GLOBAL_EXPEDITED, and MEMBARRIER_CMD_GLOBAL_EXPEDITED (Linux 4.16)."""
_NUMBERS: Final = {
    "x86_64": 324, "aarch64": 283, "riscv64": 283, "loongarch64": 283, "ppc64le": 365, "ppc64": 365, "s390x": 356,
}  # fmt: skip
"""The system call's, by machine: the C library has no function for it."""

ROUNDS: Final = 400
ROUNDS_MIN: Final = 16
SECONDS: Final = 0.1
"""So many rounds are played, or as many as there are in this time, but for the minimum."""
PATIENCE_SECONDS: Final = 5.0
_LINE: Final = 16
"""Words of a line: neighbouring ones are fetched together."""
_SIDE: Final = 8 * _LINE
_LAST: Final = 1 << 62
_BYTES: Final = 2 * _SIDE * 8
_READY, _FLAG, _RESULT, _DATA = 0, _LINE, 2 * _LINE, 3 * _LINE
"""What each side writes: the round it has come to; that it is in it; whether it saw the other's flag; five words of
data on lines of their own."""


class Words(Protocol):
    """Memory in words, each of which is read and written in one go."""

    def __getitem__(self, index: int, /) -> int: ...
    def __setitem__(self, index: int, value: int, /) -> None: ...


class Unordered(Exception):
    """Fences that do not hold, or of which that could not be found out."""


def kernel_fence() -> Callable[[], None]:
    """A function that is a fence for all processes that have called this; OSError where the kernel has none."""
    number = _NUMBERS.get(platform.machine())
    if number is None:
        raise OSError(f"no system call membarrier is known for {platform.machine()}")
    # PyDLL keeps the interpreter's lock: the call takes a microsecond or two.
    call: Any = ctypes.PyDLL(None, use_errno=True).syscall
    call.restype, call.argtypes = ctypes.c_long, (ctypes.c_long, ctypes.c_int, ctypes.c_uint, ctypes.c_int)

    def command(what: int) -> None:
        if call(number, what, 0, 0):
            code = ctypes.get_errno()
            raise OSError(code, f"membarrier: {os.strerror(code)}")

    def fence() -> None:
        command(_FENCE)

    command(_REGISTER)
    fence()
    return fence


def play(words: Words, side: int, fence: Callable[[], None], *, alive: Callable[[], bool], rounds: int = ROUNDS) -> int:
    """One of the two sides of the test; ``words`` are shared and zero at first. How many rounds were played.

    Each round asks two questions. Data, fence, counter: does whoever sees the counter see the data? And where both say
    that they are there, fence, and look whether the other is: does one of the two see it? Unordered if not, or if the
    other side stays away; ``alive`` says whether it is still there.
    """
    mine, theirs = side * _SIDE, (1 - side) * _SIDE
    began = time.monotonic()

    def wait(word: int, least: int) -> int:
        until = time.monotonic() + PATIENCE_SECONDS
        while words[word] < least:
            os.sched_yield()
            if time.monotonic() > until or not alive():
                raise Unordered(f"the other side of the litmus test did not answer within {PATIENCE_SECONDS:g} s")
        return words[word]

    for number in range(1, rounds + 2):
        late = number > ROUNDS_MIN and time.monotonic() - began > SECONDS
        if side == 0 and (late or number > rounds):
            words[mine + _READY] = _LAST
            return number - 1
        for line in range(5):
            words[mine + _DATA + line * _LINE] = number
        fence()
        words[mine + _READY] = number
        if wait(theirs + _READY, number) == _LAST:
            return number - 1
        if any(words[theirs + _DATA + line * _LINE] < number for line in range(5)):
            raise Unordered("a counter was seen before the data that it counts")
        words[mine + _FLAG] = number
        fence()
        saw = words[theirs + _FLAG] >= number
        words[mine + _RESULT] = 2 * number + saw
        other = wait(theirs + _RESULT, 2 * number)
        if not saw and other == 2 * number:
            raise Unordered("two flags were raised and neither was seen from the other side")
    return rounds


def hold(fence: Callable[[], None]) -> str:
    """Why the fences of this machine are not to be relied on; empty if they are. Takes about a tenth of a second."""
    fd = os.memfd_create("aiocoll-litmus", os.MFD_CLOEXEC)
    try:
        os.ftruncate(fd, _BYTES)
        with mmap.mmap(fd, _BYTES) as memory:
            command = [sys.executable, "-I", "-S", __file__, str(fd)]
            with (
                subprocess.Popen(
                    command, pass_fds=(fd,), stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE
                ) as other,
                memoryview(memory) as view,
                view.cast("Q") as words,
            ):
                try:
                    play(words, 0, fence, alive=lambda: other.poll() is None)
                except BaseException:
                    other.kill()
                    raise
                said = other.communicate(timeout=PATIENCE_SECONDS)[1].decode(errors="replace").strip()
                return said.splitlines()[-1][:300] if other.returncode else ""
    except Unordered as error:
        return str(error)
    except (OSError, subprocess.SubprocessError) as error:
        return f"the litmus test could not be run: {error}"
    finally:
        os.close(fd)


def _other_side(fd: int) -> int:
    """What the script does."""
    with mmap.mmap(fd, _BYTES) as memory, memoryview(memory) as view, view.cast("Q") as words:
        try:
            play(words, 1, kernel_fence(), alive=lambda: os.getppid() != 1)
        except (Unordered, OSError) as error:
            sys.stderr.write(f"{error}\n")
            return 1
    return 0


if __name__ == "__main__":
    sys.exit(_other_side(int(sys.argv[1])))
