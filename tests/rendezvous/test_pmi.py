"""Ranks that a launcher's PMI introduces: what they say to it, what they are told, and what goes wrong on the way."""

from __future__ import annotations

import asyncio
import atexit
import os
import socket
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import aiocoll
from aiocoll.errors import AuthenticationError, RendezvousError, RendezvousTimeoutError, UsageError
from aiocoll.rendezvous import pmi_client
from aiocoll.rendezvous.introduction import Introduction, introduce
from aiocoll.rendezvous.pmi_client import PmiClient
from aiocoll.rendezvous.schemes import pmi
from tests.ports import free_url

from .pmi_server import PmiServer


def introduced(server: PmiServer, size: int, address: str = "127.0.0.1") -> list[Introduction | BaseException]:
    def one(rank: int) -> Introduction | BaseException:
        client = PmiClient(server.theirs[rank].dup())
        try:
            client.begin()
            found = pmi.exchange(client, rank, size, address)
            client.finalize()
            return found
        except RendezvousError as error:
            return error
        finally:
            client.close()

    with ThreadPoolExecutor(size) as ranks:
        return list(ranks.map(one, range(size)))


def test_all_are_told_the_same_address_and_secret() -> None:
    with PmiServer(4) as server:
        found = introduced(server, 4)
        assert all(isinstance(each, Introduction) for each in found)
        told = {(each.host, each.port, each.secret) for each in found if isinstance(each, Introduction)}
        assert len(told) == 1 and {len(secret) for _, _, secret in told} == {32}
        first = found[0]
        assert isinstance(first, Introduction) and first.listener is not None and first.host == "127.0.0.1"
        assert repr(first.secret) not in repr(first)
        with first.listener, socket.create_connection((first.host, first.port)):
            pass  # nobody else can have got the port: it listens already
        assert [command for rank, command in server.said if rank == 3] == [
            "init", "get_my_kvsname", "put", "barrier_in", "barrier_in", "get", "finalize",
        ]  # fmt: skip


def test_ranks_on_several_hosts_are_told_an_address_of_rank_0s_host(monkeypatch: pytest.MonkeyPatch) -> None:
    names = iter(f"boot-{number}/1" for number in range(20))
    monkeypatch.setattr(pmi, "_host", lambda: next(names))
    with PmiServer(2) as server:
        first, second = introduced(server, 2, "127.0.0.2")  # an address of this host that is not the usual loopback
    assert isinstance(first, Introduction) and isinstance(second, Introduction) and first.listener is not None
    first.listener.close()
    assert (second.host, second.port) == ("127.0.0.2", first.port)


@pytest.mark.parametrize("host", ["192.0.2.1", "2001:db8::1"])
def test_behind_a_translated_address_rank_0_listens_where_that_kind_arrives(host: str) -> None:
    found = introduce(host)
    assert found.listener is not None and found.host == host
    with found.listener:
        assert found.listener.family == (socket.AF_INET6 if ":" in host else socket.AF_INET)


def test_where_rank_0_cannot_listen_all_hear_why(monkeypatch: pytest.MonkeyPatch) -> None:
    def full(host: str) -> Introduction:
        raise OSError(24, "Too many open files")

    monkeypatch.setattr(pmi, "introduce", full)
    with PmiServer(3) as server:
        for error in introduced(server, 3):
            assert isinstance(error, RendezvousError) and "rank 0 cannot listen" in str(error)
            assert "Too many open files" in str(error)


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        (b"cmd=response_to_init rc=-1\n", "answers 'init pmi_version=1 pmi_subversion=1' with"),
        (b"HTTP/1.1 400 Bad Request\n", "HTTP/1.1 400"),
        (b"cmd=response_to_init rc=0\ncmd=my_kvsname\n", "gives the job's keys no name"),
        (b"x" * 20_000, "a line of more than 8192 bytes"),
        (b"", "has closed the connection"),
    ],
)
def test_what_is_no_launcher(answer: bytes, words: str) -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        ours.sendall(answer)
        ours.shutdown(socket.SHUT_WR)
        with pytest.raises(RendezvousError, match=words):
            PmiClient(theirs).begin()


# ------------------------------------------------------------------------------------- connect()


class Rank:
    """This process as rank 0 of two, whose other rank a thread of the test plays."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, server: PmiServer) -> None:
        self.process, self.at_exit = pmi._Process(), list[Any]()
        self.number = os.dup(server.theirs[0].fileno())
        monkeypatch.setattr(pmi, "_process", self.process)
        monkeypatch.setattr(pmi_client, "_made_here", lambda sock: False)  # the launcher is this process, too
        monkeypatch.setattr(atexit, "register", lambda *call: self.at_exit.append(call))
        for name, value in (("PMI_RANK", "0"), ("PMI_SIZE", "2"), ("PMI_FD", str(self.number))):
            monkeypatch.setenv(name, value)

    def exit(self) -> None:
        for call, *arguments in self.at_exit:
            call(*arguments)
        os.close(self.number)


async def other(server: PmiServer) -> Introduction:
    """What rank 1 is told."""

    def talk() -> Introduction:
        client = PmiClient(server.theirs[1].dup())
        try:
            client.begin()
            return pmi.exchange(client, 1, 2, "127.0.0.1")
        finally:
            client.close()

    with ThreadPoolExecutor(1) as thread:
        return await asyncio.wrap_future(thread.submit(talk))


async def test_connect_meets_through_pmi_as_often_as_it_is_called(monkeypatch: pytest.MonkeyPatch) -> None:
    with PmiServer(2) as server:
        rank = Rank(monkeypatch, server)
        told: list[Introduction] = []

        async def second(name: str) -> aiocoll.Group:
            if not told:
                told.append(await other(server))
            url = f"tcp://{told[0].host}:{told[0].port}"
            return await aiocoll.connect(url, rank=1, size=2, secret=told[0].secret, name=name)

        for name in ("world", "world", "another"):
            one, two = await asyncio.gather(aiocoll.connect(name=name), second(name))
            sums = await asyncio.gather(*(each.all_reduce(np.arange(3) + each.rank) for each in (one, two)))
            assert [total.tolist() for total in sums] == [[1, 3, 5]] * 2 and (one.rank, one.size) == (0, 2)
            with pytest.raises(AuthenticationError):
                await aiocoll.connect(f"tcp://{told[0].host}:{told[0].port}", rank=1, size=2, secret="guessed")
            await asyncio.gather(one.close(), two.close())
        assert not os.get_inheritable(rank.number)
        assert server.said.count((0, "init")) == 1
        rank.exit()
        assert server.said[-1] == (0, "finalize")


async def test_one_that_waits_in_vain_says_so_and_comes_again(monkeypatch: pytest.MonkeyPatch) -> None:
    with PmiServer(2) as server:
        rank = Rank(monkeypatch, server)
        with pytest.raises(RendezvousTimeoutError, match=r"rank 0 of 2 has waited 0.1 s at the launcher's PMI barrier"):
            await aiocoll.connect(timeout=0.1)
        assert server.came.wait(20)
        rank.at_exit[0][0](*rank.at_exit[0][1:])
        assert (0, "finalize") not in server.said  # the launcher is to hear that this one has failed
        again = asyncio.ensure_future(aiocoll.connect())
        told = await other(server)
        one, two = await asyncio.gather(
            again, aiocoll.connect(f"tcp://127.0.0.1:{told.port}", rank=1, size=2, secret=told.secret)
        )
        assert (await asyncio.gather(one.all_reduce(3), two.all_reduce(4)))[0] == 7
        await asyncio.gather(one.close(), two.close())
        rank.exit()


async def test_rank_and_size_are_the_launchers(monkeypatch: pytest.MonkeyPatch) -> None:
    with PmiServer(2) as server:
        rank = Rank(monkeypatch, server)
        with pytest.raises(UsageError, match=r"rank=1 and size=2, but the launcher .* rank 0 of 2"):
            await aiocoll.connect(rank=1)
        monkeypatch.delenv("PMI_FD")
        with pytest.raises(UsageError, match="PMI_FD is not set"):
            await aiocoll.connect("pmi://")
        assert server.said == []
        rank.exit()


async def test_a_process_that_a_rank_started_may_be_told_its_place(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PMI_RANK", "1")
    monkeypatch.setenv("PMI_SIZE", "4")
    with pytest.raises(UsageError, match="PMI_FD is not set"):
        await aiocoll.connect()
    async with aiocoll.connect(free_url(), rank=0, size=1) as group:
        assert (group.rank, group.size) == (0, 1)


def test_a_descriptor_that_is_not_the_launchers(tmp_path: Path) -> None:
    with open(tmp_path / "log", "w") as file:
        with pytest.raises(UsageError, match=rf"PMI_FD={file.fileno()} is no socket: .*a process that a rank starts"):
            pmi_client.connected(file.fileno())
    with pytest.raises(UsageError, match=r"PMI_FD=4000 cannot be used \(Bad file descriptor\)"):
        pmi_client.connected(4000)
    loops, other = socket.socketpair()  # a child's own, which has got the number
    with loops, other:
        with pytest.raises(UsageError, match=rf"PMI_FD={loops.fileno()} is a socket of this process's own"):
            pmi_client.connected(loops.fileno())
        other.setblocking(False)
        with pytest.raises(BlockingIOError):  # nothing was said to it
            other.recv(1)
    assert (tmp_path / "log").read_text() == ""


async def test_a_forked_child_has_no_part_in_it(monkeypatch: pytest.MonkeyPatch) -> None:
    with PmiServer(2) as server:
        rank = Rank(monkeypatch, server)
        rank.process._found, rank.process._pid = Future(), os.getppid()
        with pytest.raises(UsageError, match=rf"child of the rank \(pid {os.getppid()}\)"):
            await aiocoll.connect()
        rank.exit()
