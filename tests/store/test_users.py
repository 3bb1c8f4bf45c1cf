"""Who is dead, read from the kernel's line about a process."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from aiocoll.store.users import is_dead, me, started_in

LINE = "4242 (a (b) c) {state} 1 4242 4242 0 -1 {flags} 120 0 0 0 1 2 0 0 20 0 1 0 777 1000 10 0"


@pytest.mark.parametrize(
    ("state", "flags", "started"),
    [("S", 4194560, "777"), ("R", 4194304, "777"), ("Z", 4194564, ""), ("X", 0, ""), ("R", 4194308, "")],
)
def test_zombies_and_processes_that_are_ending_do_not_count(state: str, flags: int, started: str) -> None:
    assert started_in(LINE.format(state=state, flags=flags)) == started


def test_this_process_lives() -> None:
    assert started_in(Path(f"/proc/{os.getpid()}/stat").read_text()) == me()["started"] != ""
    assert not is_dead(me())
    assert is_dead({**me(), "started": "1"})
