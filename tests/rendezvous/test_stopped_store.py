"""A store that stops answering in the middle of a meeting: the deadline holds all the same."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys

import pytest

from aiocoll.errors import RendezvousTimeoutError
from aiocoll.place import Place
from aiocoll.rendezvous import meet

STORE = """
import asyncio
from aiocoll.store import StoreServer

async def main():
    server = await StoreServer.start("127.0.0.1", 0, secret=b"", job="j")
    print(server.address[1], flush=True)
    await asyncio.Event().wait()

asyncio.run(main())
"""


@pytest.mark.slow
@pytest.mark.timeout(60)
def test_a_store_that_is_stopped_does_not_hold_those_who_meet() -> None:
    with subprocess.Popen([sys.executable, "-c", STORE], stdout=subprocess.PIPE, text=True) as server:
        assert server.stdout is not None
        place = Place(init_method=f"tcp://127.0.0.1:{int(server.stdout.readline())}", store_is_hosted=True)

        def known(address: str) -> dict[str, str]:
            os.kill(server.pid, signal.SIGSTOP)  # the connection is made, and the protocol over it begins
            return {"address": address}

        try:
            with pytest.raises(RendezvousTimeoutError, match="rank 0 of 2 .* stopped answering"):
                asyncio.run(meet(rank=0, size=2, job="j", timeout=1.0, info=known, place=place))
        finally:
            server.kill()
