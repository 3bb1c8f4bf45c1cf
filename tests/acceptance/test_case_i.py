"""Addresses and ports: situations reported of other systems (the rest of I5 to I7 is in tests/store and rendezvous)."""

from __future__ import annotations

import asyncio
import errno
import os
import socket
import subprocess
import sys
import threading
from pathlib import Path

import psutil
import pytest

import aiocoll
from aiocoll.errors import RendezvousError

PROGRAM = """
import aiocoll
async def main(group):
    assert await group.all_reduce(group.rank + 1) == 3
    print("sum is right", flush=True)
aiocoll.run(main)
"""


def run_job(script: Path) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "aiocoll", "run", "-n", "2", str(script)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


@pytest.mark.slow
def test_i5_jobs_with_defaults_run_beside_and_after_one_another(tmp_path: Path) -> None:
    script = tmp_path / "program.py"
    script.write_text(PROGRAM)
    for jobs in ([run_job(script), run_job(script)], [run_job(script)]):
        for job in jobs:
            out, err = job.communicate(timeout=60)
            assert job.returncode == 0 and out.count("sum is right") == 2, err


async def test_i5_a_port_that_is_taken_is_named_with_the_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("aiocoll.rendezvous.schemes.tcp.PORT_TAKEN_SECONDS", 0.1)
    with socket.create_server(("127.0.0.1", 0)) as thief:
        url = f"tcp://127.0.0.1:{thief.getsockname()[1]}"
        with pytest.raises(RendezvousError) as info:
            await aiocoll.connect(url, rank=0, size=2, timeout=20)
    assert url.removeprefix("tcp://") in str(info.value) and os.strerror(errno.EADDRINUSE) in str(info.value)


async def test_i6_a_socket_that_was_bound_before_leaves_no_gap_for_a_thief() -> None:
    listener = socket.socket()
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    listener.bind(("127.0.0.1", 0))
    port = listener.getsockname()[1]
    stop, stolen, tries = threading.Event(), [], 0

    def steal() -> None:
        nonlocal tries
        while not stop.is_set():
            tries += 1
            with socket.socket() as thief:
                try:
                    thief.bind(("127.0.0.1", port))
                    if not stop.is_set():  # after that it is nobody's any more
                        stolen.append(port)
                except OSError:
                    pass

    thread = threading.Thread(target=steal)
    thread.start()
    url = f"tcp://127.0.0.1:{port}"

    async def one(rank: int) -> None:
        given = listener if rank == 0 else None
        async with aiocoll.connect(url, rank=rank, size=3, transport="tcp", listener=given, timeout=30) as group:
            assert await group.all_reduce(rank) == 3
            stop.set()
            await group.barrier()

    try:
        await asyncio.gather(*map(one, range(3)))
    finally:
        stop.set()
        thread.join()
    assert tries and not stolen


async def test_i7_every_socket_of_every_rank_listens_on_loopback_only() -> None:
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        url = f"tcp://127.0.0.1:{sock.getsockname()[1]}"
    process = psutil.Process()
    before = {each.laddr for each in process.net_connections("inet") if each.status == psutil.CONN_LISTEN}

    async def one(rank: int) -> set[str]:
        async with aiocoll.connect(url, rank=rank, size=3, transport="tcp", timeout=30) as group:
            await group.barrier()
            listening = {each.laddr for each in process.net_connections("inet") if each.status == psutil.CONN_LISTEN}
            await group.barrier()
            return {address.ip for address in listening - before}

    for found in await asyncio.gather(*map(one, range(3))):
        assert found == {"127.0.0.1"}
