"""Order by the kernel's fences: what is written behind which, the litmus test that they must pass, and what all of the
links do with them instead of the processor's own order.

The rule: this machine keeps stores in order anyway, so a fence that is missing shows only in what was written when, and
in processors that are made up here.
"""

from __future__ import annotations

import logging
import platform
import random
import sys
import threading
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from aiocoll import SUM, Group, UsageError
from aiocoll.config import Settings
from aiocoll.rendezvous import island
from aiocoll.testing import run
from aiocoll.transport.shm import litmus, order
from aiocoll.transport.shm.litmus import Unordered, hold, kernel_fence, play
from aiocoll.transport.shm.order import OrderedWords, by_kernel, disorder, fence_of
from aiocoll.transport.shm.segment import ASLEEP, NONCE_BYTES, SLOT_BYTES, Geometry, Segment
from aiocoll.transport.shm.slot import REVOKED

TINY = Geometry(ranks=2, slots=2, cells=4, cell_bytes=4096)


def test_this_kernel_has_fences_and_they_hold() -> None:
    assert hold(kernel_fence()) == ""
    assert disorder("kernel") == "" and fence_of("kernel") is fence_of("kernel") is not None


def test_where_the_processor_keeps_order_nothing_is_asked_of_the_kernel() -> None:
    assert not by_kernel("auto") and disorder("auto") == "" and fence_of("auto") is None
    segment = Segment.create(TINY, b"n" * NONCE_BYTES)
    assert type(segment.words) is memoryview and segment.fence is None
    segment.close()


def test_a_machine_without_fences_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(platform, "machine", lambda: "vax")
    order._proved.cache_clear()
    try:
        assert by_kernel("auto") and fence_of("auto") is None
        assert disorder("auto").startswith("vax does not keep stores in order by itself, and the kernel is no help: ")
        assert "no system call membarrier is known for vax" in disorder("auto")
    finally:
        order._proved.cache_clear()


# -- what is written behind which


def test_words_that_count_are_written_behind_a_fence_and_what_is_taken_back_before_one() -> None:
    log: list[Any] = []
    segment = Segment.create(TINY, b"n" * NONCE_BYTES, lambda: log.append("fence"))
    words = segment.words
    assert isinstance(words, OrderedWords) and "OrderedWords" in repr(words)
    slots = [TINY.slot(local, index) // 8 for local in range(2) for index in range(2)]
    counted = [ASLEEP, *(word(1) for word in (TINY.taken, TINY.waits, TINY.news, TINY.reads)), *slots]
    for word in counted:
        log.clear()
        words[word] += 1
        assert log == ["fence"], word
    for word in [slot + i for slot in slots for i in range(1, SLOT_BYTES // 8)] + [TINY.cell(0) // 8]:
        log.clear()
        words[word] = word
        assert log == [] and words[word] == word
    words[slots[1] + 7] = REVOKED
    assert log == ["fence"]
    segment.close()


# -- processors that are made up


class Turns:
    """Lets one of two threads go on at a time, and draws who is next whenever one touches memory."""

    def __init__(self, seed: int) -> None:
        self.random, self.turn, self.here = random.Random(seed), 0, [0, 1]
        self.changed = threading.Condition()

    def await_mine(self, me: int) -> None:
        with self.changed:
            self.changed.wait_for(lambda: self.turn == me)

    def pass_on(self, me: int) -> None:
        with self.changed:
            self.turn = self.random.choice(self.here)
            self.changed.notify_all()
            self.changed.wait_for(lambda: self.turn == me)

    def leave(self, me: int) -> None:
        with self.changed:
            self.here.remove(me)
            self.turn = 1 - me
            self.changed.notify_all()


class Core:
    """A processor that keeps its stores to itself, and shows one of them whenever it looks: the oldest, or the latest
    first; all of them at a fence."""

    def __init__(self, memory: list[int], turns: Turns, me: int, latest_first: bool) -> None:
        self.memory, self.turns, self.me, self.latest_first = memory, turns, me, latest_first
        self.kept: dict[int, int] = {}

    def __getitem__(self, index: int) -> int:
        self.turns.pass_on(self.me)
        found = self.kept.get(index, self.memory[index])
        if self.kept and self.turns.random.random() < 0.5:
            word = list(self.kept)[-1 if self.latest_first else 0]
            self.memory[word] = self.kept.pop(word)
        return found

    def __setitem__(self, index: int, value: int) -> None:
        self.turns.pass_on(self.me)
        self.kept.pop(index, None)
        self.kept[index] = value

    def fence(self) -> None:
        self.memory[:] = [self.kept.get(index, value) for index, value in enumerate(self.memory)]
        self.kept.clear()


def on_two_cores(seed: int, fenced: bool, latest_first: bool) -> str:
    """What the first side to find anything finds out."""
    found: list[str] = []
    memory, turns = [0] * (litmus._BYTES // 8), Turns(seed)

    def side(number: int) -> None:
        core = Core(memory, turns, number, latest_first)
        turns.await_mine(number)
        try:
            play(core, number, core.fence if fenced else lambda: None, rounds=10, alive=lambda: not found)
        except Unordered as error:
            found.append(str(error))
        core.fence()
        turns.leave(number)

    threads = [threading.Thread(target=side, args=(number,)) for number in (0, 1)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    return found[0] if found else ""


@pytest.mark.parametrize("latest_first", [False, True])
def test_the_litmus_test_passes_processors_that_mind_their_fences(latest_first: bool) -> None:
    assert {on_two_cores(seed, True, latest_first) for seed in range(10)} == {""}


def test_the_litmus_test_catches_stores_that_are_late() -> None:
    found = {on_two_cores(seed, False, False) for seed in range(10)}
    assert "two flags were raised and neither was seen from the other side" in found, found


def test_the_litmus_test_catches_counters_that_come_before_their_data() -> None:
    found = {on_two_cores(seed, False, True) for seed in range(10)}
    assert "a counter was seen before the data that it counts" in found, found


def test_a_side_that_stays_alone_gives_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(litmus, "PATIENCE_SECONDS", 0.01)
    with pytest.raises(Unordered, match="did not answer"):
        play([0] * (litmus._BYTES // 8), 0, lambda: None, alive=lambda: True)
    monkeypatch.setattr(sys, "executable", "/nowhere/python")
    assert "could not be run" in hold(kernel_fence())
    monkeypatch.setattr(sys, "executable", "/bin/false")
    assert "did not answer" in hold(kernel_fence())


# -- with everything that stands on it


async def everything(group: Group) -> None:
    """Frames of every length, kind and place, among all ranks."""
    rank, size = group.rank, group.size
    for count in (0, 1, 100, 1000, 40_000, 300_000):
        x = np.arange(count, dtype=np.float64) * (rank + 1)
        total = size * (size + 1) // 2
        np.testing.assert_array_equal(await group.all_reduce(x), np.arange(count) * total)
        for peer, theirs in enumerate(await group.all_gather(x)):
            np.testing.assert_array_equal(theirs, np.arange(count) * (peer + 1))
        np.testing.assert_array_equal(await group.broadcast(x, root=size - 1), np.arange(count) * size)
        lent = group.empty(count)
        lent[...] = x
        np.testing.assert_array_equal(await group.all_reduce(lent, out=lent), np.arange(count) * total)
        sending = group.send(x, (rank + 1) % size, tag=count)
        np.testing.assert_array_equal(
            await group.recv((rank - 1) % size, tag=count), np.arange(count) * ((rank - 1) % size + 1)
        )
        await sending
    for number in range(200):  # calls that come again, over stamps that lie in their slots already
        x = np.full(4, float(rank + number))
        np.testing.assert_array_equal(await group.all_reduce(x, SUM), np.full(4, size * number + size * (size - 1) / 2))
        await group.barrier()


@pytest.mark.parametrize("fabric", ["shm", "process"])
@pytest.mark.parametrize("size", [2, 3, 4])
def test_everything_works_with_the_kernels_fences(fabric: str, size: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AIOCOLL_SHM_FENCE", "kernel")
    fences: list[int] = []
    real = fence_of("kernel")
    assert real is not None

    def counted(setting: str) -> Callable[[], None]:
        assert setting == "kernel"

        def fence() -> None:
            fences.append(1)
            real()

        return fence

    if fabric == "shm":
        monkeypatch.setattr("aiocoll.transport.shm.meeting.fence_of", counted)
    run(size, everything, fabric)
    assert len(fences) > 1000 or fabric == "process"


def test_without_fences_that_hold_ranks_talk_over_tcp(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(island, "disorder", lambda setting: "aarch64 does not keep stores in order")
    caplog.set_level(logging.INFO, "aiocoll.transport")

    async def main(group: Group) -> str:
        await group.barrier()
        return group._endpoint.transport.name

    assert run(2, main, "shm", transport="auto") == ["tcp", "tcp"]
    said = [record.getMessage() for record in caplog.records]
    assert len(said) == 2 and all("of its own host: aarch64 does not keep stores in order" in line for line in said)


def test_the_setting_is_checked() -> None:
    assert Settings.from_env({}).shm_fence == "auto"
    assert Settings.from_env({"AIOCOLL_SHM_FENCE": "Kernel"}).shm_fence == "kernel"
    with pytest.raises(UsageError, match="AIOCOLL_SHM_FENCE='cpu': one of auto, kernel is needed"):
        Settings.from_env({"AIOCOLL_SHM_FENCE": "cpu"})
