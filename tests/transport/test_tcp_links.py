"""TCP links on real sockets: made when first used, once, by either side; every byte arrives, in order."""

from __future__ import annotations

import asyncio
import os
import random
import socket
import struct

import pytest

from aiocoll.transport.tcp_connect import listen
from aiocoll.wire import frame

from .ends import Ends, ends, pattern

pytestmark = pytest.mark.timeout(60)


async def test_a_link_is_made_on_first_use_and_only_then() -> None:
    with ends(3) as world:
        await asyncio.sleep(0)
        assert [len(each.made) for each in world.transports] == [0, 0, 0]
        ticket = world.send(0, 1, b"hello")
        assert ticket is not None and world.transports[0].pending() == []
        await world.owners[1].until(lambda: bool(world.owners[1].frames))
        assert world.owners[1].frames == [(0, frame.DATA, 1, 2, 0, b"m", b"hello")]
        assert await ticket.future is None
        assert [sorted(each.made) for each in world.transports] == [[1], [0], []]
        assert world.send(1, 0, b"back") is None  # the same connection, at once
        await world.owners[0].until(lambda: world.owners[0].payloads() == [b"back"])
        assert world.owners[0].told("linked") == [("linked", 1)] and world.owners[1].told("linked") == [("linked", 0)]


@pytest.mark.parametrize("order", [(0, 1), (1, 0)])
async def test_both_dial_at_once_and_one_connection_stands(order: tuple[int, int]) -> None:
    for turn in range(25):
        with ends() as world:
            for src in order:
                for step in range(3):
                    world.send(src, 1 - src, pattern(100 + step, src), step)
            for rank in (0, 1):
                owner = world.owners[rank]
                await owner.until(lambda owner=owner: len(owner.frames) == 3)
                assert owner.payloads() == [pattern(100 + step, 1 - rank) for step in range(3)], turn
                assert [each[0] for each in owner.news] == ["linked"], turn
            assert len(world.transports[0].made) == len(world.transports[1].made) == 1
            near, far = (world.transports[rank].link(1 - rank)._socket for rank in (0, 1))
            assert near is not None and far is not None
            assert near.getpeername() == far.getsockname()


async def test_all_dial_all_at_once() -> None:
    size = 6
    with ends(size) as world:
        for src in range(size):
            for dst in range(size):
                if src != dst:
                    world.send(src, dst, pattern(1000, src * size + dst))
        for dst, owner in enumerate(world.owners):
            await owner.until(lambda owner=owner: len(owner.frames) == size - 1)
            for src in range(size):
                if src != dst:
                    assert owner.payloads(src) == [pattern(1000, src * size + dst)]
            assert sorted(owner.news) == [("linked", peer) for peer in range(size) if peer != dst]


async def test_the_higher_rank_dials_while_the_lower_rank_dials_later() -> None:
    """The lower rank begins to dial after it has answered the higher one's hello, and before it has its proof."""
    for pauses in range(12):
        with ends() as world:
            world.send(1, 0, b"from the higher")
            for _ in range(pauses):
                await asyncio.sleep(0)
            world.send(0, 1, b"from the lower")
            await world.owners[0].until(lambda: world.owners[0].payloads() == [b"from the higher"])
            await world.owners[1].until(lambda: world.owners[1].payloads() == [b"from the lower"])
            assert [each[0] for owner in world.owners for each in owner.news] == ["linked", "linked"]


async def test_ipv6() -> None:
    if not socket.has_ipv6:
        pytest.skip("this host has no IPv6")
    try:
        listen("::1").close()
    except ValueError:
        pytest.skip("this host has no IPv6 loopback address")
    with ends(host="::1") as world:
        world.send(0, 1, b"over six")
        await world.owners[1].until(lambda: world.owners[1].payloads() == [b"over six"])
        near = world.transports[0].link(1)._socket
        assert near is not None and near.family == socket.AF_INET6


async def test_small_buffers_and_frames_of_every_size() -> None:
    """Partial writes and reads everywhere, both ways at once."""
    rng = random.Random(5)
    sizes = [0, 1, 39, 40, 41, 1023, 1024, 1025, 8191, 8192, 65535, 65536, 65537, 300_001] + [
        rng.randrange(200_000) for _ in range(40)
    ]
    rng.shuffle(sizes)
    with ends(rcvbuf=2048, sndbuf=2048) as world:
        await world.linked()
        tickets = []
        for step, nbytes in enumerate(sizes):
            for src in (0, 1):
                tickets.append(world.send(src, 1 - src, pattern(nbytes, step + src), step))
        assert any(ticket is not None for ticket in tickets)
        for rank in (0, 1):
            owner = world.owners[rank]
            await owner.until(lambda owner=owner: len(owner.frames) == len(sizes))
            assert [each[4] for each in owner.frames] == list(range(len(sizes)))
            for step, (nbytes, payload) in enumerate(zip(sizes, owner.payloads(), strict=True)):
                assert payload == pattern(nbytes, step + 1 - rank)
        for ticket in tickets:
            assert ticket is None or await ticket.future is None
        assert not world.transports[0].busy and not world.transports[1].busy
        assert world.transports[0].link(1).bytes_sent == world.transports[1].link(0).bytes_received


async def test_a_payload_of_64_mib_arrives_by_reference() -> None:
    payload = bytearray(pattern(64 << 20))
    with ends() as world:
        ticket = world.send(0, 1, payload)
        behind = world.send(0, 1, b"behind it", 1)
        assert ticket is not None and behind is not None
        await world.owners[1].until(lambda: len(world.owners[1].frames) == 2)
        assert world.owners[1].payloads() == [bytes(payload), b"behind it"]
        assert await ticket.future is None and await behind.future is None


async def test_a_slow_reader_holds_back_only_itself() -> None:
    """The link to 1, which does not read, fills; the link to 2 goes on."""
    with ends(3, rcvbuf=4096) as world:
        near, far = await world.linked()
        await world.linked(0, 2)
        assert far._socket is not None
        loop = asyncio.get_running_loop()
        loop.remove_reader(far._socket.fileno())
        stuck = world.send(0, 1, pattern(16 << 20))
        assert stuck is not None
        for step in range(50):
            world.send(0, 2, pattern(10_000, step), step)
        await world.owners[2].until(lambda: len(world.owners[2].frames) == 50)
        assert not stuck.future.done() and list(world.transports[0].busy) == [1]
        assert not world.transports[0].drained()
        loop.add_reader(far._socket.fileno(), far._receive)
        await world.owners[1].until(lambda: len(world.owners[1].frames) == 1)
        assert await stuck.future is None and world.transports[0].pending() == []


async def _stopped(world: Ends) -> None:
    """Rank 1 does not read, and the connection from 0 to 1 is full."""
    _, far = await world.linked()
    assert far._socket is not None
    asyncio.get_running_loop().remove_reader(far._socket.fileno())
    while (ticket := world.send(0, 1, pattern(1 << 20, 99))) is None:
        pass
    world.stuck = ticket


def _go_on(world: Ends) -> None:
    far = world.transports[1].link(0)
    assert far._socket is not None
    asyncio.get_running_loop().add_reader(far._socket.fileno(), far._receive)


@pytest.mark.parametrize("keep", [True, False])
async def test_withdrawing_a_frame_that_has_not_begun(keep: bool) -> None:
    with ends(rcvbuf=4096) as world:
        await _stopped(world)
        before = len(world.owners[1].frames)
        payload = bytearray(pattern(100_000))
        ticket = world.send(0, 1, payload, 7)
        world.send(0, 1, b"last", 8)
        assert ticket is not None
        assert world.transports[0].link(1).withdraw(ticket, keep=keep) is not keep
        payload[:] = bytes(len(payload))
        _go_on(world)
        owner = world.owners[1]
        await owner.until(lambda: bool(owner.frames) and owner.frames[-1][4] == 8)
        sevens = [each[-1] for each in owner.frames[before:] if each[4] == 7]
        assert sevens == ([pattern(100_000)] if keep else [])
        assert not ticket.future.done()  # whoever withdraws does not want to hear any more


@pytest.mark.parametrize("keep", [True, False])
async def test_a_frame_that_has_begun_arrives_as_it_was(keep: bool) -> None:
    with ends(rcvbuf=4096) as world:
        _, far = await world.linked()
        assert far._socket is not None
        asyncio.get_running_loop().remove_reader(far._socket.fileno())
        payload = bytearray(pattern(32 << 20))
        ticket = world.send(0, 1, payload)
        assert ticket is not None
        assert world.transports[0].link(1).withdraw(ticket, keep=keep) is False
        payload[:] = bytes(len(payload))
        _go_on(world)
        await world.owners[1].until(lambda: len(world.owners[1].frames) == 1)
        assert world.owners[1].payloads() == [pattern(32 << 20)]
        assert not world.transports[0].busy


async def test_withdrawing_what_is_not_there() -> None:
    with ends() as world:
        near, _ = await world.linked()
        ticket = world.send(0, 1, b"gone")
        assert ticket is None

        class Other:
            def finish(self, error: BaseException | None = None) -> None:
                raise AssertionError

        assert near.withdraw(Other(), keep=False) is False


async def test_the_end_of_a_connection_is_told_once_and_ends_what_is_queued() -> None:
    with ends(rcvbuf=4096) as world:
        await _stopped(world)
        ticket = world.send(0, 1, pattern(1000))
        assert ticket is not None
        world.transports[1].close()
        await world.owners[0].until(lambda: bool(world.owners[0].told("lost")))
        error = await ticket.future
        assert type(error) is ConnectionError
        for _ in range(3):
            assert world.send(0, 1, b"swallowed") is None
            await asyncio.sleep(0)
        assert len(world.owners[0].told("lost")) == 1 and world.owners[0].told("unreached") == []
        assert world.owners[1].told("lost") == []


async def test_what_the_peer_said_last_is_read_before_a_failed_send_is_told() -> None:
    """The peer says something and is gone; this rank only sends, which fails before it has read."""
    for _ in range(20):
        with ends() as world:
            near, far = await world.linked()
            far.submit(frame.BYE, 0, 0, 0, b"", None)
            far.close()
            step = 0
            while near.ready and step < 10_000:  # without a turn of the loop in which it could read
                world.send(0, 1, b"x", step)
                step += 1
            await world.owners[0].until(lambda: bool(world.owners[0].told("lost")))
            assert [each[1] for each in world.owners[0].frames] == [frame.BYE]


@pytest.mark.parametrize("nbytes", [100, 3 << 20])
async def test_a_reset_behind_the_last_frames_is_noticed(nbytes: int) -> None:
    """The peer ends with bytes of ours unread, so that its last frames and the reset are here at once."""
    with ends() as world:
        near, far = await world.linked()
        loop = asyncio.get_running_loop()
        assert far._socket is not None
        loop.remove_reader(far._socket.fileno())
        world.send(0, 1, pattern(1000))
        ticket = world.send(1, 0, pattern(nbytes))
        while ticket is not None and not ticket.future.done():
            near.progress()
            far._flush()
        far._socket.shutdown(socket.SHUT_WR)
        far.close()
        await world.owners[0].until(lambda: bool(world.owners[0].told("lost")), 5)
        assert world.owners[0].payloads() in ([pattern(nbytes)], []) and near.ended


async def test_a_reset_is_an_end() -> None:
    with ends() as world:
        near, far = await world.linked()
        assert far._socket is not None
        far._socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        far.close()
        await world.owners[0].until(lambda: bool(world.owners[0].told("lost")))
        assert near.ended and not near.ready


@pytest.mark.parametrize(("sent", "says"), [(20, "in the middle of a frame"), (40 + 1 + 50, "in the middle of a frame"),
                                            (0, "its process ended"), (40 + 1 + 100, "its process ended")])  # fmt: skip
async def test_where_the_stream_ends_is_told(sent: int, says: str) -> None:
    whole = frame.pack_header(frame.DATA, 1, 2, 3, b"m", 100) + bytes(100)
    with ends() as world:
        _, far = await world.linked()
        assert far._socket is not None
        far._socket.send(whole[:sent])
        far.close()
        await world.owners[0].until(lambda: bool(world.owners[0].told("lost")))
        reason = world.owners[0].told("lost")[0][2]
        assert says in reason and ("middle" in says) == ("middle" in reason)
        assert len(world.owners[0].frames) == (sent == len(whole))


@pytest.mark.parametrize("junk", [b"\0" * 64, os.urandom(200), frame.pack_header(1, 0, 0, 0, b"", 2**63),
                                  frame.pack_header(1, 0, 0, 0, b"", 0)[:39] + b"x"])  # fmt: skip
async def test_an_authenticated_peer_that_talks_nonsense_is_cut_off(junk: bytes) -> None:
    with ends() as world:
        _, far = await world.linked()
        assert far._socket is not None
        far._socket.send(junk)
        await world.owners[0].until(lambda: bool(world.owners[0].told("lost")))
        assert "no correct peer sends" in world.owners[0].told("lost")[0][2]
        await world.owners[1].until(lambda: bool(world.owners[1].told("lost")))


async def test_no_memory_for_what_comes_ends_the_link(caplog: pytest.LogCaptureFixture) -> None:
    with ends() as world:
        near, far = await world.linked()

        class Full:
            def arriving(self, *header: object) -> None:
                raise MemoryError("no room")

        near._reader._sink = Full()
        world.send(1, 0, b"too much")
        await world.owners[0].until(lambda: bool(world.owners[0].told("lost")))
        assert "MemoryError" in world.owners[0].told("lost")[0][2]
        assert "cannot take what rank 1 sent" in caplog.text


async def test_a_peer_that_is_gone_before_the_first_link_is_unreached() -> None:
    with ends() as world:
        world.transports[1].close()
        ticket = world.send(0, 1, b"anybody there?")
        await world.owners[0].until(lambda: bool(world.owners[0].news))
        assert world.owners[0].news[0][:2] == ("unreached", 1)
        assert "nobody listens at" in world.owners[0].news[0][2]
        assert ticket is not None and type(await ticket.future) is ConnectionError


async def test_progress_moves_both_ways_without_the_loop() -> None:
    with ends() as world:
        near, far = await world.linked()
        world.send(0, 1, pattern(4 << 20))
        for _ in range(1000):
            moved = [near.progress(), far.progress()]
            if world.owners[1].frames:
                break
        assert world.owners[1].payloads() == [pattern(4 << 20)] and moved
        while near.progress() or far.progress():
            pass
        assert near.progress() is False and far.progress() is False


async def test_close_leaves_no_descriptor_and_no_callback() -> None:
    loop = asyncio.get_running_loop()
    before = set(os.listdir("/proc/self/fd"))
    for stage in range(30):
        with ends() as world:
            world.send(0, 1, pattern(1 << 20))
            world.send(1, 0, pattern(1 << 20))
            for _ in range(stage):
                await asyncio.sleep(0)
        for owner in world.owners:
            news = list(owner.news)
            for _ in range(3):
                await asyncio.sleep(0)
            assert owner.news == news and not any(each[0] != "linked" for each in news)
    assert set(os.listdir("/proc/self/fd")) == before
    timers = getattr(loop, "_scheduled", ())  # uvloop does not show them
    scheduled = [handle for handle in timers if not handle.cancelled()]
    assert [handle for handle in scheduled if "aiocoll" in repr(handle)] == []


async def test_close_again_is_nothing() -> None:
    with ends() as world:
        near, _ = await world.linked()
        near.close()
        near.close()
        world.transports[0].close()
        world.transports[0].close()
        assert repr(near).endswith("ended, 0 frames queued>") and "1 links" in repr(world.transports[0])
