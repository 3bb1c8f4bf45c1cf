"""Nothing from a stranger or from the store is unpickled, also where pickle is allowed (P4).

The rule: the trap tells when it is loaded, and nobody but a rank's own partner may make a rank load anything.
"""

from __future__ import annotations

import asyncio
import contextlib
import pickle
import struct
from typing import Any

import pytest

import aiocoll
from aiocoll import AiocollError, Group
from aiocoll.store import MemoryStore
from aiocoll.wire import frame
from aiocoll.wire.hello import RANK, ClientHello, Identity
from aiocoll.wire.objects import dumps, loads
from tests.group.cases import outcome
from tests.traps import SPRUNG, Trap


@pytest.fixture(autouse=True)
def _untouched() -> None:
    SPRUNG.clear()


def objects(where: str) -> bytes:
    """A pickled object as a rank sends it."""
    return b"".join(dumps([Trap(where)], allow_pickle=True))


def test_the_trap_works() -> None:
    assert loads(objects("here"), allow_pickle=True) == ["here"] and SPRUNG == ["here"]


async def world(store: MemoryStore, main: Any, size: int = 2, **connect: Any) -> list[Any]:
    """``main(group)`` on each rank, or what connecting raised."""

    async def one(rank: int) -> Any:
        async with aiocoll.connect(
            store=store, rank=rank, size=size, allow_pickle=True, **{"timeout": 20.0, **connect}
        ) as group:
            return await main(group)

    return await asyncio.gather(*(outcome(one(rank)) for rank in range(size)))


def spoken(body: bytes) -> list[bytes]:
    """What a stranger may say to get an object in: bare, as a message, as part of any call, with a guessed hello."""
    head = frame.pack_header(frame.DATA, 1, 2, 3, b"O", len(body))
    hello = ClientHello(b"guessed", Identity(RANK, "job", 1, 0, 2, 0), RANK).start()
    return [body, head + body, hello + bytes(32) + head + body, pickle.dumps(Trap("bare")), struct.pack("<I", 9) + body]


async def test_p4_a_stranger_at_a_data_port_is_never_unpickled() -> None:
    """Strangers send object frames to every rank while the ranks exchange objects of their own."""
    body = objects("stranger")

    async def visit(host: str, port: int, said: bytes) -> None:
        with contextlib.suppress(OSError):  # strangers are thrown out at any time
            reader, writer = await asyncio.open_connection(host, port)
            writer.write(said)
            with contextlib.suppress(OSError):  # as above
                await writer.drain()
            writer.write_eof()
            async with asyncio.timeout(10):
                while await reader.read(65536):
                    pass
            writer.close()
            await writer.wait_closed()

    async def main(group: Group) -> None:
        transport: Any = group._endpoint.transport
        for host, port in transport.world.addresses:
            await asyncio.gather(*(visit(host, port, said) for said in spoken(body)))
            assert await group.all_gather_object(("mine", group.rank)) == [("mine", 0), ("mine", 1)]
        assert group.broken is None

    store = MemoryStore()
    assert await world(store, main, transport="tcp", secret="of the job") == [None, None]
    await store.close()
    assert SPRUNG == []


class Poisoned(MemoryStore):
    """Answers some questions with a pickle."""

    after = 0

    async def _call(self, op: str, args: list[Any], timeout: float | None) -> Any:
        answer = await super()._call(op, args, timeout)
        type(self).after -= 1
        if type(self).after >= 0:
            return answer
        if isinstance(answer, bytes):
            return objects("store") if type(self).after % 2 else pickle.dumps(Trap("store"))
        if isinstance(answer, list):
            return [objects("store") if isinstance(each, bytes) else each for each in answer]
        return answer


@pytest.mark.parametrize(
    ("after", "transport"), [*((after, "tcp") for after in range(24)), (13, "auto"), (13, "inproc"), (20, "auto")]
)
async def test_p4_what_a_store_says_is_never_unpickled(after: int, transport: str) -> None:
    """Whichever answer of the store is a pickle: ranks meet, or say with an error of ours that they cannot."""

    async def main(group: Group) -> str:
        await group.barrier()
        return "met"

    store = Poisoned()
    Poisoned.after = after
    said = await world(store, main, transport=transport, secret="of the job", timeout=0.4)
    assert all(each == "met" or isinstance(each, AiocollError) for each in said), said
    Poisoned.after = 1 << 60
    await store.close()
    assert SPRUNG == []
