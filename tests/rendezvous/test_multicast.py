"""Meeting at a multicast address: ranks by arrival, groups apart, clashes named, strangers unheard."""

from __future__ import annotations

import asyncio
import random
import socket
from collections.abc import Iterator

import pytest

from aiocoll.errors import RendezvousError, RendezvousTimeoutError
from aiocoll.rendezvous import meet
from aiocoll.rendezvous.beacon import DATAGRAM_BYTES_MAX, MAGIC, Beacon
from aiocoll.rendezvous.hosts import is_loopback
from tests.rendezvous.meetings import gather, leave

GROUPS = ["224.66.41.62", "[ff15:1e18:5d4c:4cf0:d02d:b659:53ba:b0a7]"]


@pytest.fixture(params=GROUPS)
def url(request: pytest.FixtureRequest) -> Iterator[str]:
    port = random.randrange(20000, 30000)
    try:
        Beacon((request.param.strip("[]"), port), secret=b"", job="").close()
    except RendezvousError as error:
        pytest.skip(str(error))
    yield f"tcp://{request.param}:{port}"


@pytest.mark.parametrize("secret", [b"", b"between us"])
async def test_ranks_are_given(url: str, secret: bytes) -> None:
    meetings = await gather(
        *(meet(url, size=4, secret=secret, info=lambda address: {"address": address}) for _ in range(4))
    )
    assert sorted(meeting.rank for meeting in meetings) == [0, 1, 2, 3]
    assert len({meeting.world for meeting in meetings}) == 1
    assert secret or all(is_loopback(member["address"]) for member in meetings[0].members)
    await leave(meetings)


async def test_given_ranks_stand(url: str) -> None:
    meetings = await gather(*(meet(url, rank=rank, size=4) for rank in (2, None, 0, None)))
    assert meetings[0].rank == 2 and meetings[2].rank == 0
    assert sorted(meeting.rank for meeting in meetings) == [0, 1, 2, 3]
    await leave(meetings)


async def test_groups_and_jobs_on_one_address_stay_apart(url: str) -> None:
    calls = [
        meet(url, size=2, group_name=group, job=job, timeout=20)
        for group in ("a", "b")
        for job in ("", "j")
        for _ in range(2)
    ]
    random.shuffle(calls)
    meetings = await gather(*calls)
    assert len({meeting.world for meeting in meetings}) == 4
    await leave(meetings)


async def test_again_at_once(url: str) -> None:
    async def rank() -> None:
        for _ in range(5):
            meeting = await meet(url, size=3, timeout=20)
            await meeting.leave()

    await gather(rank(), rank(), rank())


async def test_a_world_of_one(url: str) -> None:
    await leave([await meet(url, size=1)])


async def test_who_is_missing(url: str) -> None:
    results = await asyncio.gather(*(meet(url, rank=r, size=4, timeout=1) for r in (0, None)), return_exceptions=True)
    for error in results:
        assert isinstance(error, RendezvousTimeoutError)
        assert "2 of 4 have come" in str(error) and "missing ranks 2, 3" in str(error)


@pytest.mark.parametrize(
    ("ranks", "sizes", "words"),
    [
        ([0, 1, 1], [4, 4, 4], "duplicate rank 1"),
        ([0, 1, None], [4, 4, 5], "world size"),
        ([None, None, None], [2, 2, 2], "more processes than the world size 2"),
    ],
)
async def test_clashes_fail_all(url: str, ranks: list[int | None], sizes: list[int], words: str) -> None:
    calls = [meet(url, rank=rank, size=size, timeout=60) for rank, size in zip(ranks, sizes, strict=True)]
    async with asyncio.timeout(10):
        results = await asyncio.gather(*calls, return_exceptions=True)
    for error in results:
        assert isinstance(error, RendezvousError) and not isinstance(error, TimeoutError)
        assert words in str(error)


@pytest.mark.slow
async def test_strangers_are_not_believed(url: str) -> None:
    address = url.removeprefix("tcp://").rpartition(":")
    group, port = address[0].strip("[]"), int(address[2])
    stranger = Beacon((group, port), secret=b"wrong", job="")
    (mouth,) = stranger._mouths[:1]
    waiting = [asyncio.ensure_future(meet(url, rank=rank, size=3, timeout=1.5)) for rank in (0, 1)]
    while not all(task.done() for task in waiting):
        stranger.send({"group": b"?", "uid": b"x", "rank": 2, "size": 3, "who": {}, "port": 1, "at": "127.0.0.1"})
        for noise in (b"", MAGIC, MAGIC + bytes(40), bytes(DATAGRAM_BYTES_MAX), b"\xff" * 65000):
            try:
                mouth.send(noise)
            except OSError:
                assert len(noise) > DATAGRAM_BYTES_MAX
        await asyncio.wait(waiting, timeout=0.1)
    stranger.close()
    for task in waiting:
        with pytest.raises(RendezvousTimeoutError, match=r"missing ranks 2.*its job or secret differs"):
            task.result()


def test_without_a_secret_only_this_host_is_spoken_to() -> None:
    beacon = Beacon(("224.66.41.62", 23456), secret=b"", job="")
    try:
        (mouth,) = beacon._mouths
        assert mouth.getsockname()[0] == "127.0.0.1"
        assert mouth.getsockopt(socket.IPPROTO_IP, socket.IP_MULTICAST_TTL) == 0
    finally:
        beacon.close()
    beacon = Beacon(("224.66.41.62", 23456), secret=b"s", job="")
    assert {mouth.getsockopt(socket.IPPROTO_IP, socket.IP_MULTICAST_TTL) for mouth in beacon._mouths} == {1}
    beacon.close()
