"""On a terminal: Ctrl-C from the keyboard, prompts and progress bars, colours."""

from __future__ import annotations

import contextlib
import os
import pty
import re
import select
import subprocess
import termios
import time
import tty
from collections.abc import Generator
from dataclasses import dataclass, field
from typing import Any

import pytest


@dataclass
class Screen:
    """The master side of a pseudo-terminal."""

    master: int
    slave: int
    seen: bytes = b""
    options: dict[str, Any] = field(default_factory=dict)

    def until(self, wanted: bytes, seconds: float = 30.0) -> bytes:
        """Everything on screen once `wanted` is."""
        deadline = time.monotonic() + seconds
        while wanted not in self.seen:
            assert time.monotonic() < deadline, f"{wanted!r} never came: {self.seen!r}"
            if select.select([self.master], [], [], 0.1)[0]:
                with contextlib.suppress(OSError):  # a terminal whose program has ended
                    self.seen += os.read(self.master, 65536)
        return self.seen

    def type(self, keys: bytes) -> None:
        os.write(self.master, keys)


def _own_the_terminal() -> None:
    import fcntl

    os.setsid()
    fcntl.ioctl(0, termios.TIOCSCTTY, 0)


@pytest.fixture
def screen() -> Generator[Screen, None, None]:
    master, slave = pty.openpty()
    mode = termios.tcgetattr(slave)
    mode[tty.OFLAG] &= ~termios.ONLCR
    mode[tty.LFLAG] &= ~termios.ECHO
    termios.tcsetattr(slave, termios.TCSANOW, mode)
    yield Screen(master, slave)
    os.close(master)
    os.close(slave)


def start(runner: Any, screen: Screen, *arguments: Any, **options: Any) -> subprocess.Popen[bytes]:
    options.update(stdin=screen.slave, stdout=screen.slave, stderr=screen.slave, preexec_fn=_own_the_terminal)
    process: subprocess.Popen[bytes] = runner.start(*arguments, **options)
    return process


def test_ctrl_c_reaches_each_rank_once(runner: Any, screen: Screen) -> None:
    script = runner.script("""
        import time
        try:
            print("up")
            time.sleep(600)
        except KeyboardInterrupt:
            print("interrupted"); time.sleep(0.3); print("finished")
    """)
    process = start(runner, screen, "-n", 2, script, env={"NO_COLOR": "1"})
    for rank in (b"[r0]", b"[r1]"):
        screen.until(rank + b" \x1b[Kup\n")
    screen.type(b"\x03")
    seen = screen.until(b"exit code 130")
    assert process.wait(60) == 130
    assert seen.count(b"interrupted\n") == 2 and seen.count(b"finished\n") == 2
    assert b"Traceback" not in seen


def test_a_prompt_is_shown_and_the_answer_goes_to_rank_0(runner: Any, screen: Screen) -> None:
    script = runner.script("""
        import os
        print("answer:", input("name? ") if os.environ["RANK"] == "0" else "nobody asked me")
    """)
    process = start(runner, screen, "-n", 2, script)
    screen.until(b"name? ")
    screen.type(b"Ada\n")
    screen.until(b"answer: Ada")
    screen.until(b"answer: nobody asked me")
    assert process.wait(60) == 0


def test_a_progress_bar_is_redrawn_in_place_and_others_begin_below(runner: Any, screen: Screen) -> None:
    script = runner.script("""
        import os, sys, time
        if os.environ["RANK"] == "0":
            for i in range(3):
                sys.stderr.write(f"\\rbar {i}")
                time.sleep(0.4)
            sys.stderr.write("\\n")
        else:
            time.sleep(0.6)
            print("a line")
    """)
    process = start(runner, screen, "-n", 2, script, env={"NO_COLOR": "1"})
    assert process.wait(60) == 0
    seen = screen.until(b"bar 2\n")
    assert re.search(rb"\[r0\] \x1b\[Kbar 0\r", seen), seen
    assert re.search(rb"(^|[\r\n])\[r1\] \x1b\[Ka line\n", seen), seen


def test_each_rank_has_its_colour_unless_the_user_wants_none(runner: Any, screen: Screen) -> None:
    script = runner.script("import os; print('x' + os.environ['RANK'])")
    assert start(runner, screen, "-n", 2, script).wait(60) == 0
    colours = set(re.findall(rb"\x1b\[(\d+)m\[r\d\]\x1b\[0m", screen.until(b"x0") + screen.until(b"x1")))
    assert len(colours) == 2


def test_a_lone_rank_has_the_terminal_to_itself(runner: Any, screen: Screen) -> None:
    process = start(runner, screen, runner.script("import sys; print(sys.stdout.isatty(), sys.stdin.isatty())"))
    screen.until(b"True True")
    assert process.wait(60) == 0


def test_a_terminal_that_hangs_up_ends_the_job(runner: Any) -> None:
    master, slave = pty.openpty()
    screen = Screen(master, slave)
    process = start(runner, screen, "-n", 2, runner.script("print('up'); import time; time.sleep(600)"))
    screen.until(b"up")
    os.close(slave)
    os.close(master)
    assert process.wait(60) == 129
    assert runner.nothing_left()
