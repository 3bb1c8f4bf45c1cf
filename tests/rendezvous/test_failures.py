"""Meetings that cannot be: each way to fail has its own message, on the ranks it concerns, and none hangs."""

from __future__ import annotations

import asyncio
import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from aiocoll.errors import AuthenticationError, RendezvousError, RendezvousTimeoutError
from aiocoll.rendezvous import join, meet
from aiocoll.store import TCPStore
from aiocoll.store.users import me
from tests.ports import free_url

SECRET = b"between us"
HERE = re.escape(f"{me()['host']}:{os.getpid()}")
FAST = 6.0  # "within five seconds", and what a loaded machine adds


@pytest.fixture(autouse=True)
def _failures_stand_a_shorter_while(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("aiocoll.rendezvous.schemes.tcp.FAILURE_STANDS_SECONDS", 0.5)


@pytest.fixture
def url() -> str:
    return free_url()


async def outcomes(*calls: Any) -> list[Any]:
    """Results and errors; each must be there in time."""
    began = time.monotonic()
    async with asyncio.timeout(30):
        results = await asyncio.gather(*calls, return_exceptions=True)
    assert time.monotonic() - began < FAST
    return list(results)


async def test_h1_a_missing_rank(url: str) -> None:
    results = await outcomes(*(meet(url, rank=rank, size=3, timeout=0.5) for rank in (0, 1)))
    for error in results:
        assert isinstance(error, RendezvousTimeoutError) and isinstance(error, TimeoutError)
        assert re.search(rf"{re.escape(url)}: rank \d \({HERE}\).*missing rank 2", str(error))


async def test_h1_rank_0_is_missing(url: str) -> None:
    (error,) = await outcomes(meet(url, rank=1, size=3, timeout=0.3))
    assert isinstance(error, RendezvousTimeoutError)
    assert re.search(rf"{re.escape(url)}: rank 1 of 3.*missing rank 0.*could not be reached within", str(error))


async def test_h1_a_duplicate_rank_fails_all_and_those_who_come_late(url: str) -> None:
    results = await outcomes(*(meet(url, rank=rank, size=4, timeout=60) for rank in (0, 1, 1)))
    (late,) = await outcomes(meet(url, rank=2, size=4, timeout=60))
    for error in [*results, late]:
        assert isinstance(error, RendezvousError) and not isinstance(error, TimeoutError)
        assert re.search(rf"duplicate rank 1: claimed by {HERE} and {HERE}", str(error))


async def test_a_duplicate_rank_0_of_another_process(url: str) -> None:
    child = await _child(url, "rank=0, size=3, timeout=30")
    results = await outcomes(*(meet(url, rank=rank, size=3, timeout=60) for rank in (0, 1)))
    for error in results:
        assert isinstance(error, RendezvousError) and "duplicate rank 0" in str(error)
        assert f"{me()['host']}:{child.pid}" in str(error)
    stdout, _ = await child.communicate()
    assert b"duplicate rank 0" in stdout


@pytest.mark.parametrize("late", [False, True])
async def test_h1_another_size(url: str, late: bool) -> None:
    calls = [meet(url, rank=0, size=4, timeout=60), meet(url, rank=2, size=5, timeout=60)]
    third = meet(url, rank=1, size=4, timeout=60)
    results = await outcomes(*calls) + await outcomes(third) if late else await outcomes(*calls, third)
    for error in results:
        assert isinstance(error, RendezvousError) and not isinstance(error, TimeoutError)
        assert re.search(r"world size (4 versus 5|5 versus 4)", str(error))


async def test_a_newcomer_to_a_complete_world_fails_alone(url: str) -> None:
    meetings = await asyncio.gather(*(meet(url, rank=rank, size=2) for rank in (0, 1)))
    child = await _child(url, "rank=1, size=2, timeout=30")
    stdout, _ = await child.communicate()
    assert b"RendezvousError" in stdout and b"duplicate rank 1" in stdout
    await meetings[0].store.set("still", b"here")
    assert await meetings[1].store.get("still") == b"here"
    for meeting in meetings:
        await meeting.leave()


@pytest.mark.parametrize(
    "other",
    [
        {"secret": b"wrong"},
        pytest.param({"secret": b""}, marks=pytest.mark.slow),
        pytest.param({"job": "another"}, marks=pytest.mark.slow),
    ],
)
async def test_a_stranger_fails_alone_and_is_mentioned(url: str, other: dict[str, Any]) -> None:
    ours: dict[str, Any] = {"size": 3, "secret": SECRET, "job": "j"}
    waiting = [asyncio.ensure_future(meet(url, rank=rank, timeout=1.5, **ours)) for rank in (0, 1)]
    (error,) = await outcomes(meet(url, rank=2, timeout=60, **ours | other))
    assert isinstance(error, AuthenticationError) and not isinstance(error, RendezvousError)
    assert ("job" in str(error)) if "job" in other else ("secret" in str(error))
    for error in await outcomes(*waiting):
        assert isinstance(error, RendezvousTimeoutError)
        assert re.search(r"missing rank 2.*refused meanwhile: .*127\.0\.0\.1", str(error))


async def test_no_stranger_ends_a_job(url: str) -> None:
    ours: dict[str, Any] = {"size": 2, "secret": SECRET, "timeout": 30}
    waiting = asyncio.ensure_future(meet(url, rank=0, **ours))
    (error,) = await outcomes(meet(url, rank=1, **ours | {"secret": b"wrong"}))
    assert isinstance(error, AuthenticationError)
    for noise in (b"GET / HTTP/1.1\r\n\r\n", bytes(2000), b"\xff" * 2000):
        reader, writer = await asyncio.open_connection("127.0.0.1", int(url.rpartition(":")[2]))
        writer.write(noise)
        await reader.read()
        writer.close()
    for meeting in (await meet(url, rank=1, **ours), await waiting):
        await meeting.leave()


@pytest.fixture
async def http() -> AsyncIterator[str]:
    """The address of a server that speaks HTTP."""

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(1)
        writer.write(b"HTTP/1.1 400 Bad Request\r\nConnection: close\r\n\r\n")
        writer.close()

    server = await asyncio.start_server(answer, "127.0.0.1", 0)
    yield f"tcp://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    server.close()
    await server.wait_closed()


async def test_something_else_listens_there(http: str) -> None:
    for_client, for_host = await outcomes(*(meet(http, rank=rank, size=2, timeout=60) for rank in (1, 0)))
    assert isinstance(for_client, RendezvousError) and "HTTP/1.1 400" in str(for_client)
    assert isinstance(for_host, RendezvousError) and "Address already in use" in str(for_host)
    assert http.removeprefix("tcp://") in str(for_client) and http.removeprefix("tcp://") in str(for_host)


@pytest.mark.slow
async def test_something_silent_listens_there() -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        url = f"tcp://127.0.0.1:{silent.getsockname()[1]}"
        for_client, for_host = await outcomes(*(meet(url, rank=rank, size=2, timeout=60) for rank in (1, 0)))
    assert isinstance(for_client, RendezvousError) and "has said nothing" in str(for_client)
    assert isinstance(for_host, RendezvousError) and "Address already in use" in str(for_host)


@pytest.mark.parametrize("rank", [0, 1])
async def test_h1_a_host_that_does_not_exist(rank: int) -> None:
    (error,) = await outcomes(meet("tcp://no-such-host.invalid:29500", rank=rank, size=2, timeout=60))
    assert isinstance(error, RendezvousError) and "'no-such-host.invalid' cannot be resolved" in str(error)


@pytest.mark.slow
async def test_another_job_has_the_port(url: str) -> None:
    other = asyncio.ensure_future(meet(url, rank=0, size=2, secret=SECRET, job="theirs", timeout=3))
    await asyncio.sleep(0)
    child = await _child(url, f"rank=0, size=2, timeout=30, secret={SECRET!r}, job='ours'")
    stdout, _ = await child.communicate()
    assert b"RendezvousError" in stdout and b"Address already in use" in stdout
    with pytest.raises(RendezvousTimeoutError):
        await other


async def test_cancelling_releases_all(url: str) -> None:
    waiting = asyncio.ensure_future(meet(url, rank=0, size=2, timeout=60))
    async with await TCPStore.connect("127.0.0.1", int(url.rpartition(":")[2])):
        pass
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting


# ------------------------------------------------------------------------------------- processes that are killed

_CHILD = """
import asyncio, sys
from aiocoll.rendezvous import meet
async def main():
    print("begins", flush=True)
    try:
        meeting = await meet({url!r}, {arguments})
    except Exception as error:
        print(type(error).__name__, error, flush=True)
        return
    print("met", meeting.rank, flush=True)
    await asyncio.sleep({stay})
    await meeting.leave()
asyncio.run(main())
"""


async def _child(url: str, arguments: str, stay: float = 0.0) -> asyncio.subprocess.Process:
    """A process that meets there; it has begun when this returns."""
    code = _CHILD.format(url=url, arguments=arguments, stay=stay)
    child = await asyncio.create_subprocess_exec(
        sys.executable, "-c", code, stdout=asyncio.subprocess.PIPE, cwd=Path(__file__).parents[2]
    )
    assert child.stdout is not None
    assert await child.stdout.readline() == b"begins\n"
    return child


async def test_h8_a_rank_killed_while_it_waits_is_replaced(url: str) -> None:
    waiting = asyncio.ensure_future(meet(url, rank=0, size=3, timeout=30))
    victim = await _child(url, "rank=1, size=3, timeout=30")
    await _until_arrived(url, rank=1)
    victim.send_signal(signal.SIGKILL)
    await victim.wait()
    calls = [meet(url, rank=rank, size=3, timeout=30) for rank in (1, 2)]
    for meeting in [*await asyncio.gather(*calls), await waiting]:
        await meeting.leave()


async def _until_arrived(url: str, rank: int) -> None:
    """Waits until that rank of a child has put its claim into the store."""
    from aiocoll.rendezvous.roster import Roster

    async with asyncio.timeout(20), await TCPStore.connect("127.0.0.1", int(url.rpartition(":")[2])) as store:
        await store.wait(["aiocoll/world/0/log"])
        while True:
            roster = Roster.replay(await store.get("aiocoll/world/0/log"))
            if any(claim.rank == rank for claim in roster.claims.values()):
                return
            await asyncio.sleep(0.01)


async def test_h7_a_file_left_by_killed_processes_is_taken_over(tmp_path: Path) -> None:
    url = f"file://{tmp_path}/meeting"
    victims = [await _child(url, "size=2, timeout=30", stay=60.0) for _ in range(2)]
    for victim in victims:
        assert victim.stdout is not None
        assert (await victim.stdout.readline()).startswith(b"met")
        victim.send_signal(signal.SIGKILL)
        await victim.wait()
    assert (tmp_path / "meeting").exists()
    meetings = await asyncio.gather(*(meet(url, size=2, timeout=30) for _ in range(2)))
    assert sorted(meeting.rank for meeting in meetings) == [0, 1]
    for meeting in meetings:
        await meeting.leave()
    assert os.listdir(tmp_path) == []


@pytest.mark.slow
async def test_h7_many_processes_meet_in_a_file_that_does_not_exist(tmp_path: Path) -> None:
    url = f"file://{tmp_path}/meeting"
    children = [await _child(url, "size=8, timeout=60") for _ in range(8)]
    said = [(await child.communicate())[0] for child in children]
    assert sorted(said) == [f"met {rank}\n".encode() for rank in range(8)]
    assert os.listdir(tmp_path) == []


def test_rank_0_may_leave_first_and_the_others_go_on(url: str) -> None:
    code = _CHILD.format(url=url, arguments="rank=int(sys.argv[1]), size=3, timeout=30", stay="int(sys.argv[1]) * 0.3")
    children = [
        subprocess.Popen([sys.executable, "-c", code, str(rank)], stdout=subprocess.PIPE, cwd=Path(__file__).parents[2])
        for rank in range(3)
    ]
    for rank, child in enumerate(children):
        stdout, _ = child.communicate(timeout=30)
        assert (stdout, child.returncode) == (f"begins\nmet {rank}\n".encode(), 0)


@pytest.mark.slow
async def test_the_protocol_over_a_connection_that_breaks(url: str) -> None:
    waiting = asyncio.ensure_future(meet(url, rank=0, size=3, timeout=2))
    store = await TCPStore.connect("127.0.0.1", int(url.rpartition(":")[2]))
    joining = asyncio.ensure_future(join(store, rank=1, size=3, timeout=30))
    await asyncio.sleep(0.1)
    store._stream.close(ConnectionResetError(104, "reset"))
    with pytest.raises(RendezvousError, match=r"lost.*that was while waiting: .*arrived rank.*missing rank"):
        await joining
    await store.close()
    with pytest.raises(RendezvousTimeoutError):
        await waiting
