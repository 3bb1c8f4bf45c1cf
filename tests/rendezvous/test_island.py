"""Worlds whose ranks share memory, do not, or only in part: all know who does, and one line of the log says why not."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import logging
import os
from collections.abc import AsyncIterator, Iterator, Sequence
from typing import Any

import numpy as np
import pytest

import aiocoll
from aiocoll import Group
from aiocoll.rendezvous import island
from aiocoll.store import MemoryStore
from aiocoll.transport.shm.door import Door
from aiocoll.transport.shm.segment import Segment

pytestmark = pytest.mark.timeout(60)


@contextlib.asynccontextmanager
async def joined(transports: Sequence[str], **options: Any) -> AsyncIterator[list[Group]]:
    """The groups of ranks that are tasks of this loop, each with its own wish; all have found one sum."""
    size = len(transports)
    async with MemoryStore() as store:
        groups = await asyncio.gather(
            *(
                aiocoll.connect(store=store, rank=rank, size=size, transport=transport, **options)
                for rank, transport in enumerate(transports)
            )
        )
        try:
            inputs = [np.arange(700.0) * (rank + 1) + rank for rank in range(size)]
            for total in await asyncio.gather(*(g.all_reduce(x) for g, x in zip(groups, inputs, strict=True))):
                np.testing.assert_array_equal(total, sum(inputs))
            yield groups
        finally:
            await asyncio.gather(*(group.close() for group in groups))


def memories(group: Group) -> list[str]:
    return [member.memory for member in group._endpoint.members]


def names(groups: Sequence[Group]) -> list[str]:
    return [group._endpoint.transport.name for group in groups]


@pytest.fixture
def lines(caplog: pytest.LogCaptureFixture) -> Iterator[pytest.LogCaptureFixture]:
    with caplog.at_level(logging.INFO, "aiocoll.transport"):
        yield caplog


def said(caplog: pytest.LogCaptureFixture) -> list[str]:
    return sorted(record.getMessage() for record in caplog.records)


@pytest.mark.parametrize("transport", ["auto", "shm"])
async def test_all_share(transport: str, lines: pytest.LogCaptureFixture) -> None:
    async with joined([transport] * 3) as groups:
        assert names(groups) == ["shm"] * 3 and [memories(g) for g in groups] == [["memory/0"] * 3] * 3
        assert lines.records == []
        for group in groups:
            moved = group.statistics()
            assert set(moved["bytes_sent"]) == {"shm"} and moved["bytes_sent"]["shm"] > 0


async def test_some_want_tcp_and_all_know_who_shares(lines: pytest.LogCaptureFixture) -> None:
    async with joined(["tcp", "auto", "auto", "tcp", "shm"]) as groups:
        assert names(groups) == ["tcp", "shm+tcp", "shm+tcp", "tcp", "shm+tcp"]
        assert [memories(group) for group in groups] == [["", "memory/1", "memory/1", "", "memory/1"]] * 5
        moved = groups[1].statistics()
        assert moved["bytes_sent"].keys() == {"shm", "tcp"} and all(moved["bytes_sent"].values())
    assert [line.replace(str(rank), "N", 1) for rank, line in zip((1, 2, 4), said(lines), strict=True)] == [
        "rank N talks over TCP with rank 0, 3 of its own host: they want TCP, or are in another container"
    ] * 3


async def test_tcp_and_nothing_is_said(lines: pytest.LogCaptureFixture) -> None:
    async with joined(["tcp", "tcp"]) as groups:
        assert names(groups) == ["tcp", "tcp"] and memories(groups[0]) == ["", ""] and lines.records == []


async def test_one_that_gets_no_memory_and_all_say_so(
    lines: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    create, calls = Segment.create, iter(range(9))

    def second_fails(*arguments: Any) -> Segment:
        if next(calls) == 1:
            raise OSError(errno.ENOSPC, "no room for it")
        return create(*arguments)

    monkeypatch.setattr(Segment, "create", second_fails)
    async with joined(["auto"] * 3) as groups:
        assert names(groups) == ["tcp"] * 3 and [memories(group) for group in groups] == [[""] * 3] * 3
    assert len(lines.records) == 3 and {record.levelname for record in lines.records} == {"WARNING"}
    reasons = {line.partition(": ")[2] for line in said(lines)}
    assert len(reasons) == 1 and reasons.pop().endswith(": no room for it")


@pytest.mark.parametrize("transport", ["auto", "shm"])
async def test_where_it_is_impossible(
    transport: str, lines: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(island, "impossible", lambda: "this is no Linux")
    async with joined([transport] * 2) as groups:
        assert names(groups) == ["tcp"] * 2
    assert said(lines) == [
        "rank 0 talks over TCP with rank 1 of its own host: this is no Linux",
        "rank 1 talks over TCP with rank 0 of its own host: this is no Linux",
    ]
    assert {record.levelname for record in lines.records} == {"WARNING" if transport == "shm" else "INFO"}


async def test_no_door(lines: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch) -> None:
    def no_door() -> Door:
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))

    monkeypatch.setattr(island, "Door", no_door)
    async with joined(["auto"] * 2) as groups:
        assert names(groups) == ["tcp"] * 2
    assert all(line.endswith("no UNIX socket: Too many open files") for line in said(lines)) and len(lines.records) == 2


class Elsewhere(Door):
    """Doors that stand in two network namespaces by turns."""

    made = 0

    def __init__(self) -> None:
        super().__init__()
        Elsewhere.made += 1
        self.namespace += Elsewhere.made % 2


async def test_two_islands_on_one_host(lines: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(island, "Door", Elsewhere)
    async with joined(["auto"] * 5) as groups:
        assert names(groups) == ["shm+tcp"] * 5
        everybody = [memories(group) for group in groups]
        assert everybody == [everybody[0]] * 5
        assert sorted(everybody[0].count(name) for name in set(everybody[0])) == [2, 3]
    assert len(lines.records) == 5 and all("another container" in line for line in said(lines))


class Lost(Door):
    """Doors that nobody can find, though they were told."""

    @property
    def info(self) -> dict[str, Any]:
        return super().info | {"unix": "nobody-is-here"}


async def test_doors_that_nobody_finds(lines: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(island, "Door", Lost)
    async with joined(["auto"] * 3) as groups:
        assert names(groups) == ["tcp"] * 3
    assert len({line.partition(": ")[2] for line in said(lines)}) == 1 and "refused" in said(lines)[0]


async def test_settings_that_differ(lines: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch) -> None:
    async with MemoryStore() as store:
        connecting = []
        for rank in range(2):
            monkeypatch.setenv("AIOCOLL_SHM_SLOTS", str(8 << rank))
            connecting.append(aiocoll.connect(store=store, rank=rank, size=2))
        groups = await asyncio.gather(*connecting)
        assert names(groups) == ["tcp"] * 2
        await asyncio.gather(*(group.close() for group in groups))
    assert len(lines.records) == 2 and all("bytes instead of" in line for line in said(lines))


async def test_a_rank_that_dies_before_the_island_is_settled(lines: pytest.LogCaptureFixture) -> None:
    """It has met the others and then is no more: they do not wait for long, and get a world without shared memory."""
    async with MemoryStore() as store:
        connecting = [asyncio.ensure_future(_joining(store, rank)) for rank in range(3)]
        while not any(task.done() for task in connecting[:1]):
            await asyncio.sleep(0)
            if any(isinstance(key, str) and key.endswith("verdict") for key in await store.list()):
                connecting[2].cancel()
                break
        results = await asyncio.gather(*connecting, return_exceptions=True)
        groups = [each for each in results if isinstance(each, Group)]
        assert len(groups) >= 2
        assert len({tuple(memories(group)) for group in groups}) == 1
        for group in groups:
            group._endpoint.close()


async def _joining(store: MemoryStore, rank: int) -> Group:
    return await aiocoll.connect(store=store, rank=rank, size=3, timeout=3.0)


@pytest.mark.parametrize("turns", range(0, 60, 2))
async def test_cancelled_while_it_connects_it_leaves_nothing(turns: int) -> None:
    async with MemoryStore() as store:
        connecting = [asyncio.ensure_future(_joining(store, rank)) for rank in range(3)]
        for _ in range(turns):
            await asyncio.sleep(0)
        for task in connecting:
            task.cancel()
        for result in await asyncio.gather(*connecting, return_exceptions=True):
            if isinstance(result, Group):
                result._endpoint.close()
