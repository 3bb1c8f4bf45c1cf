"""Whether another host is there: only silence that was asked about counts, and a rank that computes is never lost."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import Iterator

import pytest

from aiocoll.transport import tcp_health
from aiocoll.transport.tcp_health import Silence, Watch, silence, tune
from aiocoll.wire import frame
from aiocoll.wire.codec import unpack_control

from .ends import ends, pattern

pytestmark = pytest.mark.timeout(60)


@pytest.fixture
def connection() -> Iterator[tuple[socket.socket, socket.socket]]:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        near = socket.create_connection(listener.getsockname())
        far, _ = listener.accept()
        with near, far:
            yield near, far


class Line:
    """A connection whose silence a test decides on."""

    def __init__(self, connection: socket.socket) -> None:
        self.connection: socket.socket | None = connection
        self.reason = ""

    def silent(self, reason: str) -> None:
        self.reason = reason


@pytest.mark.parametrize(
    ("lost_seconds", "idle", "interval"), [(10.0, 3, 2), (1.0, 1, 1), (60.0, 18, 12), (1e9, 9830, 6553)]
)
def test_an_idle_connection_asks_often_enough(
    connection: tuple[socket.socket, socket.socket], lost_seconds: float, idle: int, interval: int
) -> None:
    near, _ = connection
    tune(near, lost_seconds)
    options = [near.getsockopt(socket.IPPROTO_TCP, getattr(socket, name)) for name in ("TCP_KEEPIDLE", "TCP_KEEPINTVL")]
    assert options == [idle, interval] and near.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE)
    assert near.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)
    if lost_seconds == 10.0:
        cut_after = idle + interval * near.getsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPCNT)
        assert cut_after < lost_seconds
    # Which would end the connection to a rank that computes while its window is shut.
    assert near.getsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT) == 0


def test_a_peer_that_does_not_read_answers(connection: tuple[socket.socket, socket.socket]) -> None:
    near, _ = connection
    near.setblocking(False)
    with pytest.raises(BlockingIOError):
        while True:
            near.send(bytes(1 << 20))
    heard = silence(near)
    assert heard is not None and heard.seconds < 5


def test_a_socket_that_is_none_any_more_says_nothing(connection: tuple[socket.socket, socket.socket]) -> None:
    near, _ = connection
    near.close()
    assert silence(near) is None and not tcp_health.is_dialling(near)


async def test_silence_counts_when_it_was_asked_about_and_twice(
    connection: tuple[socket.socket, socket.socket], monkeypatch: pytest.MonkeyPatch
) -> None:
    heard = {sock: Silence(0.0, unanswered=False) for sock in connection}
    monkeypatch.setattr(tcp_health, "silence", heard.get)
    one, other = map(Line, connection)
    watch = Watch(asyncio.get_running_loop(), 10.0, lambda: [one, other])
    heard[connection[0]] = Silence(100.0, unanswered=False)  # idle, and nothing was asked yet
    heard[connection[1]] = Silence(8.9, unanswered=True)  # asked, and not too late yet
    for _ in range(3):
        watch._look()
    assert (one.reason, other.reason) == ("", "") and watch.doubts(other) and not watch.doubts(one)
    heard[connection[0]] = Silence(100.0, unanswered=True)
    watch._look()
    assert one.reason == ""  # this host may have been stopped itself: it is asked again
    heard[connection[1]] = Silence(0.1, unanswered=False)
    watch._look()
    assert "nothing has come from its host for 100.0 s" in one.reason and other.reason == "" and not watch.doubts(other)
    one.connection = other.connection = None
    watch.end()
    watch._look()
    assert watch._timer is None and "lost after 9 s" in repr(watch)


async def test_whoever_gives_a_peer_up_says_so() -> None:
    with ends() as world:
        near, _ = await world.linked()
        near.silent("nothing has come from its host")
        assert world.owners[0].told("lost") == [("lost", 1, "nothing has come from its host", False)]
        await world.owners[1].until(lambda: bool(world.owners[1].frames))
        kind, *_, data = world.owners[1].frames[0][1:]
        assert kind == frame.CONTROL
        assert unpack_control(data) == {"t": "cut", "text": "nothing has come from its host"}


async def test_whoever_is_in_the_middle_of_a_frame_says_nothing() -> None:
    with ends(rcvbuf=4096) as world:
        near, far = await world.linked()
        assert far._socket is not None
        asyncio.get_running_loop().remove_reader(far._socket.fileno())
        assert world.send(0, 1, pattern(16 << 20)) is not None
        near.silent("nothing has come from its host")
        asyncio.get_running_loop().add_reader(far._socket.fileno(), far._receive)
        await world.owners[1].until(lambda: bool(world.owners[1].told("lost")))
        assert world.owners[1].frames == [] and "in the middle of a frame" in world.owners[1].told("lost")[0][2]


@pytest.mark.parametrize("doubted", [False, True])
async def test_an_end_behind_silence_says_little_about_the_process(
    doubted: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    with ends() as world:
        near, far = await world.linked()
        monkeypatch.setattr(world.transports[0].watch, "doubts", lambda link: doubted)
        far.close()
        await world.owners[0].until(lambda: bool(world.owners[0].told("lost")))
        assert world.owners[0].told("lost") == [("lost", 1, "its process ended", not doubted)]
        assert near.ended


async def test_a_host_that_never_answers_is_lost_and_not_left() -> None:
    """A listener whose queue is full drops what else comes, without a word."""
    with ends() as world, contextlib.ExitStack() as stack:
        deaf = stack.enter_context(socket.socket())
        deaf.bind(("127.0.0.1", 0))
        deaf.listen(0)
        for _ in range(4):
            caller = stack.enter_context(socket.socket())
            caller.setblocking(False)
            caller.connect_ex(deaf.getsockname())
        transport = world.transports[0]
        object.__setattr__(transport.world, "addresses", (world.addresses[0], deaf.getsockname()))
        object.__setattr__(transport.world, "lost_seconds", 0.2)
        transport.link(1)
        await world.owners[0].until(lambda: bool(world.owners[0].news))
        what, peer, reason, certain = world.owners[0].news[0]
        assert (what, peer, certain) == ("lost", 1, False)
        assert f"connecting to 127.0.0.1:{deaf.getsockname()[1]} failed: its host does not answer" in reason
