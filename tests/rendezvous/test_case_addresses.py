"""How ranks are found: situations reported of other systems (I1, I3), on one host and on two made of namespaces."""

from __future__ import annotations

import asyncio
import json
import os
import socket
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import aiocoll
from aiocoll.transport.tcp_connect import _from
from tests.hosts import Host, two_hosts

ROOT = Path(__file__).resolve().parents[2]
pytestmark = pytest.mark.timeout(120)


@pytest.fixture
def hosts() -> Iterator[list[Host]]:
    with two_hosts() as made:
        yield made


def results(
    places: Sequence[Host], urls: Sequence[str], secret: str = "secret", **environ: str
) -> list[dict[str, Any]]:
    """What one rank in each of ``places`` says; nothing may stand on its error output."""
    environment = {key: value for key, value in os.environ.items() if not key.startswith("AIOCOLL_")}
    environment |= {"PYTHONPATH": str(ROOT), "PYTHONWARNINGS": "error", "AIOCOLL_TRANSPORT": "tcp"} | environ
    script = str(Path(__file__).with_name("address_rank.py"))
    ranks = [
        subprocess.Popen(
            place.enter(sys.executable, script, str(rank), str(len(places)), urls[place.number], secret),
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment,
        )
        for rank, place in enumerate(places)
    ]  # fmt: skip
    try:
        outputs = [rank.communicate(timeout=60) for rank in ranks]
    finally:
        for rank in ranks:
            rank.kill()
            rank.communicate()
    assert all(rank.returncode == 0 for rank in ranks) and not any(errors for _, errors in outputs), outputs
    return [json.loads(output) for output, _ in outputs]


@pytest.mark.slow
def test_i1_each_rank_tells_the_address_of_the_interface_that_faces_the_store(hosts: list[Host]) -> None:
    """Whatever the host's name resolves to: none of them asks for it."""
    a, b = hosts
    for said in results([a, b, b], ["tcp://10.77.0.1:29400"] * 2):
        assert said["addresses"] == ["10.77.0.1", "10.77.0.2", "10.77.0.2"] and said["sent"]["tcp"] > 0


@pytest.mark.slow
def test_i3_two_hosts_that_speak_only_ipv6(hosts: list[Host]) -> None:
    """Global addresses, and link-local ones, in which each host names its own interface."""
    a, b = hosts
    for each in hosts:
        each.ip("address", "flush", "dev", each.cable, "scope", "global")
        each.ip("address", "add", f"fd77::{each.number + 1}/64", "dev", each.cable, "nodad")
        each.ip("address", "add", f"fe80::{each.number + 1}/64", "dev", each.cable, "nodad")
    for said in results([a, b, b], ["tcp://[fd77::1]:29400"] * 2):
        assert said["addresses"] == ["fd77::1", "fd77::2", "fd77::2"]
    for said in results([a, b, a], ["tcp://[fe80::1%cable0]:29401", "tcp://[fe80::1%cable1]:29401"]):
        assert all(address.startswith("fe80::") and address.partition("%")[2] for address in said["addresses"]), said


@pytest.mark.slow
def test_i3_a_host_without_ipv6_is_none_the_worse(hosts: list[Host]) -> None:
    """``localhost`` may still stand for ::1, too; nothing is said about that."""
    a, _ = hosts
    off = "echo 1 > /proc/sys/net/ipv6/conf/all/disable_ipv6"
    done = subprocess.run(a.enter("sh", "-c", off), capture_output=True, text=True)
    if done.returncode:
        pytest.skip(f"IPv6 cannot be switched off here: {done.stderr.strip()}")
    for url in ("tcp://localhost:29400", "tcp://127.0.0.1:29401"):
        for said in results([a, a], [url, url], secret=""):
            assert said["addresses"] == ["127.0.0.1"] * 2


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost", "[::1]", "[0:0:0:0:0:0:0:1]"])
async def test_i3_a_world_on_loopback_of_either_kind(host: str) -> None:
    try:
        with socket.create_server(
            ("::1" if ":" in host else "127.0.0.1", 0), family=(socket.AF_INET6 if ":" in host else socket.AF_INET)
        ) as server:
            url = f"tcp://{host}:{server.getsockname()[1]}"
    except OSError as error:
        pytest.skip(f"this host has no {host}: {error.strerror}")

    async def one(rank: int) -> None:
        async with aiocoll.connect(url, rank=rank, size=3, transport="tcp") as group:
            assert ((await group.all_reduce(np.arange(4.0) + rank)) == np.arange(4.0) * 3 + 3).all()

    await asyncio.gather(*map(one, range(3)))


async def test_i3_listening_on_ipv6_alone_is_reached_by_a_name_that_means_both(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever resolves the name to IPv4 first tries the other address, too."""
    try:
        listener = socket.create_server(("::1", 0), family=socket.AF_INET6)
    except OSError as error:
        pytest.skip(f"this host has no ::1: {error.strerror}")
    listener.setblocking(False)
    port, real = listener.getsockname()[1], socket.getaddrinfo

    def both(host: Any, *arguments: Any, **options: Any) -> Any:
        if host != "both":
            return real(host, *arguments, **options)
        return real("127.0.0.1", *arguments, **options) + real("::1", *arguments, **options)

    monkeypatch.setattr(socket, "getaddrinfo", both)

    async def one(rank: int) -> float:
        where = {"listener": listener} if rank == 0 else {}
        url = f"tcp://[::1]:{port}" if rank == 0 else f"tcp://both:{port}"
        async with aiocoll.connect(url, rank=rank, size=2, transport="tcp", **where) as group:
            return float(await group.all_reduce(rank + 1.5))

    assert await asyncio.gather(one(0), one(1)) == [4.0, 4.0]


@pytest.mark.parametrize(
    ("mine", "theirs", "dialled"),
    [("fe80::1%eth0", "fe80::2%ens3", "fe80::2%eth0"), ("10.0.0.1", "10.0.0.2", "10.0.0.2"),
     ("fd00::1", "fe80::2%ens3", "fe80::2%ens3"), ("fe80::1%eth0", "fd00::2", "fd00::2")],
)  # fmt: skip
def test_i3_an_interface_is_named_by_the_host_that_has_it(mine: str, theirs: str, dialled: str) -> None:
    assert _from(mine, theirs) == dialled
