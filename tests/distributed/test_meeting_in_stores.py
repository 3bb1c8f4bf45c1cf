"""Worlds that meet in the documented stores, and in stores of a program's own."""

from __future__ import annotations

import gc
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import aiocoll.distributed as dist
from aiocoll import store as stores
from aiocoll.distributed.stores import meeting_place
from aiocoll.distributed.stores.borrowed import InThreads
from aiocoll.errors import RendezvousTimeoutError
from aiocoll.testing import stores as conformance
from tests.distributed.ranks import ranks

HERE = "127.0.0.1"


class Own(dist.Store):
    """A program's own store, over a dict."""

    def __init__(self) -> None:
        self.held: dict[str, bytes] = {}
        self.lock = threading.Lock()

    def set(self, key: str, value: str | bytes) -> None:
        self.held[key] = value.encode() if isinstance(value, str) else value

    def get(self, key: str) -> bytes:
        return self.held[key]

    def check(self, keys: Any) -> bool:
        return all(key in self.held for key in keys)

    def add(self, key: str, amount: int) -> int:
        with self.lock:
            self.held[key] = str(int(self.held.get(key, b"0")) + amount).encode()
            return int(self.held[key])

    def compare_set(self, key: str, expected_value: str | bytes, desired_value: str | bytes) -> bytes:
        expected, desired = (
            each.encode() if isinstance(each, str) else each for each in (expected_value, desired_value)
        )
        with self.lock:
            if self.held.get(key, b"") == expected:
                self.held[key] = desired
            return self.held.get(key, expected)

    def append(self, key: str, value: str | bytes) -> None:
        with self.lock:
            self.held[key] = self.held.get(key, b"") + (value.encode() if isinstance(value, str) else value)

    def delete_key(self, key: str) -> bool:
        return self.held.pop(key, None) is not None

    def list_keys(self) -> list[str]:
        return list(self.held)


def test_a_store_of_ones_own_lacks_what_it_does_not_say() -> None:
    bare = dist.Store()
    calls: list[Callable[[], Any]] = [
        lambda: bare.set("a", ""), lambda: bare.get("a"), lambda: bare.add("a", 1), lambda: bare.check(["a"]),
        lambda: bare.compare_set("a", "", ""), lambda: bare.delete_key("a"), bare.num_keys, bare.list_keys, bare.clone,
        lambda: bare.wait(["a"]), lambda: bare.append("a", ""), lambda: bare.queue_push("a", ""),
        lambda: bare.queue_pop("a"), lambda: bare.queue_len("a"),
    ]  # fmt: skip
    for call in calls:
        with pytest.raises(NotImplementedError, match="Store has no method"):
            call()
    own = Own()
    own.multi_set(["a", "b"], ["1", b"2"])
    assert own.multi_get(["b", "a"]) == [b"2", b"1"]
    seen = dist.PrefixStore("x", own)
    seen.set("a", "3")
    assert own.held["x/a"] == b"3" and seen.underlying_store is own and seen.list_keys() == ["a"]


def met(rank: int, size: int) -> tuple[int, int, list[float]]:
    x = np.arange(3.0) + rank
    dist.all_reduce(x)
    return dist.get_rank(), dist.get_world_size(), x.tolist()


def all_met(size: int) -> list[Any]:
    return [(rank, size, sum(np.arange(3.0) + each for each in range(size)).tolist()) for rank in range(size)]


@pytest.mark.parametrize("kind", ["hash", "prefix", "file", "tcp", "own", "async"])
def test_a_world_meets_in_a_store(kind: str, tmp_path: Path) -> None:
    with dist.HashStore() as shared, dist.TCPStore(HERE, 0, None, True) as master:
        own, memory = Own(), stores.MemoryStore()

        def mine() -> Any:
            match kind:
                case "hash":
                    return shared
                case "prefix":
                    return dist.PrefixStore("job", dist.PrefixStore("1", shared))
                case "file":
                    return dist.FileStore(str(tmp_path / "meet"), 3)
                case "tcp":
                    return dist.TCPStore(HERE, master.port)
                case "own":
                    return own
            return memory.clone()

        assert ranks(3, lambda rank: met(rank, 3), join=lambda _: {"store": mine()}) == all_met(3)
        left = [key for key in own.held if key.startswith("world/1")]
        assert not left
        if kind == "hash":
            shared.set("still", "open")
    gc.collect()  # a world that is left is a knot of objects, the store's view among them
    assert not list(tmp_path.iterdir())


def test_k1_again_and_again_over_one_store() -> None:
    """Join, work, leave, in one process and over one store, twenty times; a subgroup made in between."""
    with dist.HashStore() as shared:
        for turn in range(20):

            def program(rank: int, turn: int = turn) -> list[float]:
                pair = dist.new_group([0, 1])
                x = np.arange(3.0) * turn + rank
                dist.all_reduce(x, group=pair)
                return x.tolist()

            assert ranks(2, program, join=lambda _: {"store": shared}) == [(np.arange(3.0) * 2 * turn + 1).tolist()] * 2
        assert len(shared.list_keys()) < 10


def test_h8_a_name_that_was_left_behind() -> None:
    """Keys of a start that failed half-way do not poison the next one of the same name; neither do fifty good ones."""
    with dist.HashStore() as shared:
        with pytest.raises(RendezvousTimeoutError, match="missing rank"):
            dist.init_process_group("tcp", store=shared, rank=0, world_size=2, group_name="g", timeout=0.2)
        before = None
        for turn in range(25):
            assert ranks(2, lambda rank: met(rank, 2), join=lambda _: {"store": shared}, group_name="g") == all_met(2)
            keys = len(shared.list_keys())
            assert turn < 3 or keys <= before
            before = keys


class Contested(Own):
    """A queue whose first item somebody else takes between a look and the grab."""

    def __init__(self) -> None:
        super().__init__()
        self.items, self.grabs, self.looks = [b"theirs"], 0, 0

    def queue_len(self, key: str) -> int:
        self.looks += 1
        if self.looks == 4:
            self.items.append(b"mine")
        return len(self.items)

    def queue_pop(self, key: str, block: bool = True) -> bytes:
        self.grabs += 1
        if self.grabs == 1:
            self.items.clear()
            raise LookupError("empty")
        return self.items.pop(0)


async def test_a_pop_that_comes_second_waits_for_the_next_item() -> None:
    held = Contested()
    assert await InThreads(held).queue_pop("q", timeout=20) == b"mine" and held.grabs == 2
    held.items.append(b"x")
    held.grabs = 0
    with pytest.raises(RendezvousTimeoutError, match="q"):
        await InThreads(held).queue_pop("q", timeout=0)


class Refilled(Own):
    """A queue into which somebody pushes right after a pop that found nothing."""

    def __init__(self, error: Exception) -> None:
        super().__init__()
        self.items, self.error = [b"theirs"], error

    def queue_len(self, key: str) -> int:
        return len(self.items)

    def queue_pop(self, key: str, block: bool = True) -> bytes:
        if self.items == [b"theirs"]:
            self.items[0] = b"mine"
            raise self.error
        return self.items.pop(0)


async def test_a_queue_that_was_empty_and_is_not_any_more() -> None:
    assert await InThreads(Refilled(dist.QueueEmptyError("empty"))).queue_pop("q", timeout=20) == b"mine"
    with pytest.raises(OSError, match="broken"):
        await InThreads(Refilled(OSError("broken"))).queue_pop("q", timeout=20)


def test_no_store() -> None:
    for wrong in (3, object(), "tcp://127.0.0.1:1"):
        with pytest.raises(TypeError, match="is no store"):
            dist.init_process_group("tcp", store=wrong, rank=0, world_size=1)


@pytest.mark.parametrize("check", [name for name in conformance.CHECKS if name != "closing"])  # a view closes nothing
@pytest.mark.parametrize("view", [InThreads, meeting_place])
async def test_blocking_stores_conform_as_meeting_places(check: str, view: Callable[[dist.Store], Any]) -> None:
    with dist.HashStore() as held:

        async def open_one() -> Any:
            return view(held)

        await conformance.CHECKS[check](open_one)
