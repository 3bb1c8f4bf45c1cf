"""meet(): who says what, what is refused before a socket is opened, and that each scheme's ranks meet."""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

from aiocoll.errors import RendezvousError, UsageError
from aiocoll.place import Place
from aiocoll.rendezvous import meet
from aiocoll.rendezvous.hosts import check_reachable, is_loopback, is_multicast, outward
from aiocoll.rendezvous.meet import schemes
from aiocoll.store import MemoryStore, StoreServer
from tests.ports import free_port, free_url
from tests.rendezvous.meetings import gather, leave

SECRET = b"between us"


def says_address(port: int) -> Callable[[str], Mapping[str, Any]]:
    return lambda address: {"address": address, "port": port}


@pytest.fixture
async def no_sockets(monkeypatch: pytest.MonkeyPatch) -> None:
    """Fails whoever opens one (the test's own loop has its sockets already)."""

    def refuse(*args: Any, **kwargs: Any) -> None:
        raise AssertionError("a socket was opened")

    monkeypatch.setattr(socket, "socket", refuse)
    monkeypatch.setattr(socket, "getaddrinfo", refuse)


def test_the_schemes_are_the_files() -> None:
    assert schemes() == ("env", "file", "pmi", "session", "tcp")


# ------------------------------------------------------------------------------------- what is refused at once


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"size": 0}, "size=0"),
        ({"size": -1}, "size=-1"),
        ({"size": "2"}, "size='2'.*not str"),
        ({"size": 2.0}, "size=2.0.*not float"),
        ({"size": True}, "size=True.*not bool"),
        ({"rank": True}, "rank=True.*not bool"),
        ({"rank": "0"}, "rank='0'.*not str"),
        ({"rank": 2, "size": 2}, r"rank=2: the ranks of a world of 2 are 0\.\.1"),
        ({"rank": -1, "size": 2}, "rank=-1"),
        ({"rank": 1}, "rank=1"),
        ({"size": 2}, "nothing says where to meet"),
        ({"init_method": "tcp://"}, "'tcp://' is malformed"),
        ({"init_method": 5}, "init_method=5"),
        ({"init_method": "smoke://signals", "size": 2}, r"'smoke://signals'.*env://, file://.*tcp://"),
        ({"init_method": "tcp://127.0.0.1:5", "rank": 5, "size": 2}, "rank=5"),
        ({"init_method": "tcp://127.0.0.1:5?rank=5", "size": 2}, "rank=5"),
        ({"timeout": 0}, "timeout=0"),
        ({"timeout": "1"}, "timeout='1'"),
        ({"timeout": float("nan")}, "timeout=nan"),
        ({"store": MemoryStore(), "init_method": "env://"}, "both init_method"),
        ({"store": MemoryStore()}, "store= needs size="),
        ({"init_method": "file:///nowhere"}, "world_size is not set"),
    ],
)
async def test_h4_refused_before_any_socket(no_sockets: None, arguments: dict[str, Any], words: str) -> None:
    with pytest.raises(UsageError, match=words):
        await meet(**arguments)


async def test_tcp_needs_rank_and_size() -> None:
    with pytest.raises(UsageError, match="world_size is not set"):
        await meet("tcp://127.0.0.1:5", rank=0)
    with pytest.raises(UsageError, match="requires manual rank assignment"):
        await meet("tcp://127.0.0.1:5", size=2)


@pytest.mark.parametrize("rank", [0, 1])
@pytest.mark.parametrize("url", ["tcp://198.51.100.7:29500", "tcp://0.0.0.0:29500", "tcp://[2001:db8::1]:29500"])
async def test_beyond_loopback_needs_a_secret(url: str, rank: int) -> None:
    with pytest.raises(UsageError, match=r"without a secret only loopback.*secret=.*aiocoll run"):
        await meet(url, rank=rank, size=2)


# ------------------------------------------------------------------------------------- alone, and over a store


async def test_alone() -> None:
    meeting = await meet(info=says_address(5))
    assert (meeting.rank, meeting.size, len(meeting.members)) == (0, 1, 1)
    assert meeting.members[0]["address"] == "127.0.0.1" and meeting.members[0]["port"] == 5
    await meeting.store.set("key", b"value")
    await meeting.leave()
    await (await meet(rank=0, size=1)).leave()


async def test_over_a_store() -> None:
    store = MemoryStore()
    meetings = await gather(*(meet(store=store, rank=rank, size=3, info={"of": rank}) for rank in (2, 0, 1)))
    assert [meeting.rank for meeting in meetings] == [2, 0, 1]
    assert [member["of"] for member in meetings[0].members] == [0, 1, 2]
    await leave(meetings)
    await store.set("the store", b"is still open")
    await store.close()


async def test_names_groups_and_restarts_never_meet() -> None:
    store = MemoryStore()
    one: dict[str, Any] = {"store": store, "rank": 0, "size": 1}
    worlds = await gather(
        meet(**one), meet(**one, name="b"), meet(**one, group_name="g"), meet(**one, place=Place(restart=1))
    )
    assert len(await store.list("aiocoll/")) == len({m.world for m in worlds}) * 5
    await leave(worlds)
    await store.close()


# ------------------------------------------------------------------------------------- tcp


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost", "::1"])
async def test_tcp(host: str) -> None:
    try:
        port = free_port(host)
    except OSError as error:
        pytest.skip(f"this host has no {host}: {error.strerror}")
    url = f"tcp://[{host}]:{port}" if ":" in host else f"tcp://{host}:{port}"
    meetings = await gather(*(meet(url, rank=rank, size=3, info=says_address(rank)) for rank in (1, 2, 0)))
    assert [meeting.rank for meeting in meetings] == [1, 2, 0]
    assert all(is_loopback(member["address"]) for member in meetings[0].members)
    assert [member["port"] for member in meetings[0].members] == [0, 1, 2]
    # What rank 0 serves lives until the last has left.
    await meetings[2].leave()
    await meetings[0].store.set("still", b"here")
    assert await meetings[1].store.get("still") == b"here"
    await leave(meetings)


async def test_k1_tcp_again_and_again_on_one_port() -> None:
    url = free_url()
    for _ in range(5):
        meetings = await gather(*(meet(url, rank=rank, size=2) for rank in (0, 1)))
        await leave(meetings)


async def test_tcp_with_a_secret_beyond_loopback() -> None:
    address = outward()
    url = f"tcp://{address}:{free_port(address)}"
    calls = [meet(url, rank=rank, size=2, secret=SECRET, job="j", info=says_address(0)) for rank in (0, 1)]
    meetings = await gather(*calls)
    assert [member["address"] for member in meetings[0].members] == [address, address]
    await leave(meetings)


async def test_a_name_that_means_loopback_at_home_is_served_on_every_interface(monkeypatch: pytest.MonkeyPatch) -> None:
    real = socket.getaddrinfo

    def debian(host: Any, *args: Any, **kwargs: Any) -> Any:
        return real("127.0.1.1" if host == "node0" else host, *args, **kwargs)

    monkeypatch.setattr(socket, "getaddrinfo", debian)
    port = free_port()
    serving = asyncio.ensure_future(
        meet(f"tcp://node0:{port}", rank=0, size=2, secret=SECRET, info=says_address(0), timeout=30)
    )
    other = await meet(f"tcp://{outward()}:{port}", rank=1, size=2, secret=SECRET, info=says_address(1), timeout=30)
    assert [member["address"] for member in other.members] == [outward(), outward()]
    await leave([other, await serving])


async def test_an_address_of_the_users_is_what_the_others_are_told() -> None:
    url = free_url()
    meetings = await gather(
        *(meet(url, rank=r, size=2, info=says_address(r), advertise="192.0.2.9" if r else "") for r in (0, 1))
    )
    assert [member["address"] for member in meetings[0].members] == ["127.0.0.1", "192.0.2.9"]
    await leave(meetings)


async def test_i6_a_listening_socket_is_taken() -> None:
    listener = socket.create_server(("127.0.0.1", 0))
    url = f"tcp://127.0.0.1:{listener.getsockname()[1]}"
    meetings = await gather(meet(url, rank=0, size=2, listener=listener), meet(url, rank=1, size=2))
    await leave(meetings)


async def test_the_url_wins_over_the_environment_and_arguments_win_over_the_url() -> None:
    place = Place(rank=0, size=9, source="torchrun")
    url = free_url()
    calls = [meet(f"{url}?rank=1&size=2", place=place), meet(f"{url}?rank=1&size=3", rank=0, size=2, place=place)]
    meetings = await gather(*calls)
    assert [(meeting.rank, meeting.size) for meeting in meetings] == [(1, 2), (0, 2)]
    await leave(meetings)


async def test_the_runners_store() -> None:
    server = await StoreServer.start("127.0.0.1", 0, secret=SECRET, job="j")
    url = f"tcp://127.0.0.1:{server.port}"
    places = [
        Place(rank=rank, size=2, init_method=url, source="aiocoll", store_is_hosted=True, restart=2) for rank in (0, 1)
    ]
    meetings = await gather(*(meet(place=place, secret=SECRET, job="j") for place in places))
    assert [meeting.rank for meeting in meetings] == [0, 1]
    # env:// means the same store, until the script names another address.
    for environ, hosted in (
        ({"RANK": "{}", "WORLD_SIZE": "2"}, True),
        ({"RANK": "{}", "WORLD_SIZE": "2", "MASTER_ADDR": "a", "MASTER_PORT": "5", "AIOCOLL_MASTER": "a:5"}, True),
        (
            {
                "RANK": "{}",
                "WORLD_SIZE": "2",
                "MASTER_ADDR": "127.0.0.1",
                "MASTER_PORT": str(free_port()),
                "AIOCOLL_MASTER": "a:5",
            },
            False,
        ),
    ):
        again = await gather(
            *(
                meet(
                    "env://",
                    place=places[rank],
                    secret=SECRET,
                    job="j",
                    environ={key: value.format(rank) for key, value in environ.items()},
                )
                for rank in (0, 1)
            )
        )
        assert [meeting.rank for meeting in again] == [0, 1]
        assert (again[0].where == url) is hosted
        await leave(again)
    await leave(meetings)
    await server.close()


# ------------------------------------------------------------------------------------- env


async def test_env() -> None:
    environ = {"WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port())}
    meetings = await gather(*(meet("env://", environ=environ | {"RANK": str(rank)}) for rank in (1, 0)))
    assert [meeting.rank for meeting in meetings] == [1, 0]
    await leave(meetings)
    without_address = {key: value for key, value in environ.items() if key != "MASTER_ADDR"} | {"RANK": "0"}
    meetings = await gather(meet("env://", environ=without_address), meet("env://", environ=environ | {"RANK": "1"}))
    await leave(meetings)
    meetings = await gather(*(meet("env://?rank=0", rank=rank, environ=environ | {"RANK": "7"}) for rank in (1, 0)))
    assert [meeting.rank for meeting in meetings] == [1, 0]
    await leave(meetings)


@pytest.mark.parametrize("name", ["RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"])
async def test_env_names_what_is_missing(name: str) -> None:
    environ = {"RANK": "1", "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "5"}
    del environ[name]
    with pytest.raises(UsageError, match=f"{name} .*expected, but not set"):
        await meet("env://", environ=environ)


# ------------------------------------------------------------------------------------- file


async def test_file(tmp_path: Path) -> None:
    url = f"file://{tmp_path}/meeting"
    for _ in range(3):
        meetings = await gather(*(meet(url, rank=rank, size=4) for rank in (None, None, 0, None)))
        assert sorted(meeting.rank for meeting in meetings) == [0, 1, 2, 3]
        assert meetings[2].rank == 0
        await leave(meetings[:3])
        assert (tmp_path / "meeting").exists()
        await leave(meetings[3:])
        assert not (tmp_path / "meeting").exists()


async def test_h7_file_of_one_and_after_a_timeout(tmp_path: Path) -> None:
    url = f"file://{tmp_path}/meeting"
    await (await meet(url, size=1)).leave()
    with pytest.raises(RendezvousError, match="missing rank 1"):
        await meet(url, size=2, timeout=0.1)
    assert os.listdir(tmp_path) == []


async def test_h7_file_failures(tmp_path: Path) -> None:
    with pytest.raises(RendezvousError, match="No such file or directory"):
        await meet(f"file://{tmp_path}/missing/meeting", rank=0, size=2)
    url = f"file://{tmp_path}/meeting"
    calls = (meet(url, rank=rank, size=3, timeout=60) for rank in (0, 1, 1))
    results = await asyncio.gather(*calls, return_exceptions=True)
    assert all("duplicate rank 1" in str(error) for error in results)
    meetings = await gather(*(meet(url, rank=rank, size=3) for rank in (0, 1, 2)))
    await leave(meetings)
    assert os.listdir(tmp_path) == []


# ------------------------------------------------------------------------------------- addresses


def test_kinds_of_addresses() -> None:
    assert not is_multicast("127.0.0.1") and is_multicast("224.0.0.1") and is_multicast("ff15::1%lo")
    assert is_loopback("127.9.9.9") and is_loopback("LOCALHOST") and not is_loopback("192.0.2.1")


def test_loopback_in_a_world_of_several_hosts_is_an_error() -> None:
    here = {"host": "a", "boot": "1", "address": "192.0.2.1"}
    there = {"host": "b", "boot": "2", "address": "::1"}
    check_reachable("x", [here, here | {"address": "127.0.0.1"}])
    check_reachable("x", [here, there | {"address": "192.0.2.2"}])
    check_reachable("x", [here, there | {"boot": "", "address": "127.0.0.1"}])
    with pytest.raises(RendezvousError, match=r"rank 1 on b advertises ::1.*ranks on a cannot reach.*AIOCOLL_HOST"):
        check_reachable("x", [here, there])


async def test_such_a_world_breaks_up_on_all_ranks() -> None:
    store = MemoryStore()
    calls = [
        meet(store=store, rank=rank, size=2, info={"boot": str(rank), "address": "127.0.0.1", "host": "h"})
        for rank in (0, 1)
    ]
    results = await asyncio.gather(*calls, return_exceptions=True)
    assert all(isinstance(error, RendezvousError) and "rank 0 on h advertises" in str(error) for error in results)
    assert await store.list() == ["aiocoll/world/current"]
    await store.close()
