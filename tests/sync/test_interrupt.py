"""Ctrl-C at every step of a blocking call: it arrives, the peers hear who it was, and all else goes on.

The rule: the signal comes at a counted step, not after a time, so that a failure can be repeated.
"""

from __future__ import annotations

import concurrent.futures
import os
import signal
import sys
import threading
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import aiocoll.sync
from aiocoll import GroupBrokenError
from aiocoll.sync import SyncGroup
from aiocoll.sync.drivers import Driver
from aiocoll.sync.interrupt import INTERRUPTS

PACKAGE = str(Path(aiocoll.__file__).parent)


@contextmanager
def interrupted(step: int, within: str = "") -> Generator[None, None, None]:
    """SIGINT when the ``step``-th function of the package (of its room ``within``) is entered or left."""
    left = step

    def count(frame: Any, event: str, argument: Any) -> None:
        nonlocal left
        if frame.f_code.co_filename.startswith(f"{PACKAGE}/{within}"):
            left -= 1
            if not left:
                sys.setprofile(None)
                signal.raise_signal(signal.SIGINT)

    sys.setprofile(count)
    try:
        yield
    finally:
        sys.setprofile(None)


def until_broken(twin: SyncGroup, count: int) -> GroupBrokenError:
    """Calls until one fails."""
    turn = 0
    try:
        while True:
            assert twin.all_reduce(np.arange(float(count)) + turn)[-1] == 2 * (count - 1 + turn)
            turn += 1
    except GroupBrokenError as error:
        return error


def both(tmp_path: Path, transport: str, steps: list[tuple[int, int, str]]) -> None:
    """Rank 0, in the main thread, is interrupted at each of the steps, in calls of so many elements."""

    def meet(rank: int) -> SyncGroup:
        return aiocoll.sync.connect(f"file://{tmp_path}/meet", rank=rank, size=2, transport=transport, timeout=20)

    def others() -> None:
        with meet(1) as group:
            for _, count, _ in steps:
                with group.dup() as twin:
                    error = until_broken(twin, count)
                assert error.rank == 0, error
                check(group)

    def check(group: SyncGroup) -> None:
        for turn in range(2):  # the links have lost nothing, and nobody is blamed
            assert (group.all_reduce(np.arange(700) + turn + group.rank) == 2 * np.arange(700) + 2 * turn + 1).all()

    with concurrent.futures.ThreadPoolExecutor(1) as pool:
        other = pool.submit(others)
        with meet(0) as group:
            for step, count, within in steps:
                twin = group.dup()
                with pytest.raises(KeyboardInterrupt), twin, interrupted(step, within):
                    until_broken(twin, count)
                assert signal.getsignal(signal.SIGINT) is not signal.default_int_handler
                check(group)
        other.result()
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


@pytest.mark.parametrize("transport", ["tcp", "shm"])
def test_at_every_step_of_a_call(tmp_path: Path, transport: str) -> None:
    both(tmp_path, transport, [(step, 40, "") for step in range(1, 240, 3)])


@pytest.mark.parametrize("transport", ["tcp", "shm"])
def test_at_every_step_of_a_transport(tmp_path: Path, transport: str) -> None:
    both(tmp_path, transport, [(step, count, "transport") for step in range(1, 60, 2) for count in (300, 70_000)])


def test_a_call_that_computes_for_long_is_ended_by_a_second_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("aiocoll.sync.interrupt._SECOND_SECONDS", 0.0)
    seen = threading.Event()

    def fold(left: Any, right: Any) -> Any:
        raise AssertionError("nobody to fold with")

    class Array:
        """What takes for ever to become an array."""

        def __array__(self, *args: Any, **kwargs: Any) -> Any:
            while True:
                signal.raise_signal(signal.SIGINT)
                seen.set()

    with aiocoll.sync.connect(size=1, rank=0) as group, pytest.raises(KeyboardInterrupt):
        group.all_reduce(Array(), aiocoll.op(fold))
    assert seen.is_set()


def test_a_handler_of_the_users_is_left_alone() -> None:
    caught: list[int] = []
    before = signal.signal(signal.SIGINT, lambda number, frame: caught.append(number))
    try:
        with aiocoll.sync.connect(size=1, rank=0) as group:
            os.kill(os.getpid(), signal.SIGINT)
            assert group.all_reduce(1) == 1
        assert caught == [signal.SIGINT]
    finally:
        signal.signal(signal.SIGINT, before)


def test_one_that_comes_while_the_last_group_closes_arrives_once(monkeypatch: pytest.MonkeyPatch) -> None:
    end = Driver._wind_up

    def interrupted_end(driver: Driver) -> None:
        signal.raise_signal(signal.SIGINT)
        end(driver)

    group = aiocoll.sync.connect(size=1, rank=0)
    with monkeypatch.context() as patched, pytest.raises(KeyboardInterrupt):
        patched.setattr(Driver, "_wind_up", interrupted_end)
        group.close()
        while INTERRUPTS.pending:
            os.sched_yield()
    assert group.closed and not INTERRUPTS.pending  # else one more would come every millisecond
    aiocoll.sync.connect(size=1, rank=0).close()
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_the_last_group_of_several_takes_the_handler_along() -> None:
    first, second = (aiocoll.sync.connect(size=1, rank=0) for _ in range(2))
    first.close()
    assert signal.getsignal(signal.SIGINT) is not signal.default_int_handler
    with pytest.raises(KeyboardInterrupt):
        signal.raise_signal(signal.SIGINT)
    second.close()
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
