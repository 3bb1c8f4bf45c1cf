"""The documented stores: alone, shared by processes' threads, and as places where a world meets."""

from __future__ import annotations

import copy
import gc
import os
import pickle
import socket
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

import aiocoll.distributed as dist
from aiocoll.errors import PeerLostError, RendezvousError, RendezvousTimeoutError, UsageError
from tests.distributed.processes import spawn
from tests.ports import free_port

HERE = "127.0.0.1"
SHORT = timedelta(milliseconds=100)


Kind = Callable[[], dist.Store]


@pytest.fixture(params=["TCPStore", "FileStore", "HashStore", "PrefixStore"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[dist.Store]:
    kinds: dict[str, Kind] = {
        "TCPStore": lambda: dist.TCPStore(HERE, 0, 1, True, timedelta(seconds=20)),
        "FileStore": lambda: dist.FileStore(str(tmp_path / "store"), 1),
        "HashStore": dist.HashStore,
    }
    with kinds.get(request.param, dist.HashStore)() as opened:
        seen = dist.PrefixStore("part", opened) if request.param == "PrefixStore" else opened
        seen.set_timeout(timedelta(seconds=20))
        yield seen


# ------------------------------------------------------------------------------------------------ every method


def test_every_documented_method(store: dist.Store) -> None:
    before = store.num_keys()
    assert store.has_extended_api() and store.timeout == timedelta(seconds=20)
    store.set("a", "x")
    store.set("b", b"\xff")
    assert store.get("a") == b"x" and store.multi_get(["b", "a"]) == [b"\xff", b"x"]
    assert store.num_keys() == before + 2
    assert (store.add("c", 3), store.add("c", -1), store.get("c")) == (3, 2, b"2")
    assert store.check(["a", "b"]) and not store.check(["a", "zz"]) and store.check([])
    assert store.compare_set("n", "", "v") == b"v" and store.compare_set("n", "v", b"w") == b"w"
    assert store.compare_set("n", "v", "z") == b"w" and store.compare_set("mm", "v", "z") == b"v"
    assert not store.check(["mm"])
    assert store.delete_key("a") and not store.delete_key("a")
    store.append("q", "1")
    store.append("q", "2")
    assert store.get("q") == b"12"
    store.multi_set(["m1", "m2"], ["1", b"2"])
    assert sorted(store.list_keys()) == ["b", "c", "m1", "m2", "n", "q"]
    store.queue_push("line", "1")
    store.queue_push("line", "2")
    assert store.queue_len("line") == 2 and store.queue_pop("line") == b"1" and store.queue_pop("line", False) == b"2"
    with pytest.raises(dist.QueueEmptyError, match="line") as caught:
        store.queue_pop("line", block=False)
    assert isinstance(caught.value, RuntimeError) and isinstance(caught.value, dist.DistStoreError)
    assert issubclass(dist.DistStoreError, dist.DistError) and issubclass(PeerLostError, dist.DistBackendError)
    assert issubclass(PeerLostError, dist.DistNetworkError)
    with store.clone() as twin:
        assert twin.get("b") == b"\xff" and twin.timeout == store.timeout
    store.barrier("here", 1)
    assert "Store" in repr(store)


def test_h5_a_wait_that_ends_says_for_what(store: dist.Store) -> None:
    """A key that never comes: TimeoutError and RuntimeError with the key; other calls on the same client go on."""
    store.set_timeout(SHORT)
    late: list[tuple[str, Callable[[], Any]]] = [
        ("nope", lambda: store.get("nope")), ("nope", lambda: store.multi_get(["nope"])),
        ("nope", lambda: store.wait(["nope"])), ("line", lambda: store.queue_pop("line")),
        ("1 of 2 workers", lambda: store.barrier("here", 2)), ("1 of 2 workers", lambda: store.barrier("here", 2)),
    ]  # fmt: skip
    for key, call in late:
        with pytest.raises(RendezvousTimeoutError, match=rf"{key}.*\d\.\d s") as caught:
            call()
        assert isinstance(caught.value, TimeoutError) and isinstance(caught.value, RuntimeError)
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(store.wait, ["later"], timedelta(seconds=20))
        for number in range(100):
            assert store.add("counter", 1) == number + 1
        assert not waiting.done()
        store.set("later", "now")
        waiting.result(20)


def test_h3_a_wait_for_several_keys(store: dist.Store) -> None:
    """A wait for several keys, of which some were there and some come later, in whatever order."""
    store.set("a", "1")
    with ThreadPoolExecutor(2) as pool:
        waiting = [pool.submit(store.wait, ["c", "a", "b", "a"], timedelta(seconds=20)) for _ in range(2)]
        store.set("b", "2")
        assert not any(each.done() for each in waiting)
        store.set("c", "3")
        for each in waiting:
            each.result(20)
    store.wait([])
    store.wait(["a"], timedelta(0))
    with pytest.raises(TimeoutError, match="nobody has set all of '.*a', '.*nope'"):
        store.wait(["a", "nope"], timedelta(0))


def test_several_threads_and_a_barrier_that_serves_again(store: dist.Store) -> None:
    def worker(number: int) -> list[int]:
        seen = []
        for turn in range(5):
            store.add(f"turn {turn}", 1)
            store.barrier("all", 3, timedelta(seconds=20))
            seen.append(int(store.get(f"turn {turn}")))
        return seen

    with ThreadPoolExecutor(3) as pool:
        assert list(pool.map(worker, range(3))) == [[3] * 5] * 3


def test_refused_arguments(store: dist.Store) -> None:
    refused: list[tuple[type[Exception], str, Callable[[], Any]]] = [
        (TypeError, "str or bytes", lambda: store.set("a", 3)),
        (TypeError, "list of str", lambda: store.wait("a")),
        (TypeError, "key must be str", lambda: store.get(3)),
        (TypeError, "key must be str", lambda: store.check([None])),
        (RuntimeError, "not valid UTF-8", lambda: store.set(b"\xff", "1")),
        (TypeError, "64 bits", lambda: store.add("a", 1 << 63)),
        (RuntimeError, "not valid Unicode", lambda: store.set("a", "\udc80")),
        (TypeError, "int", lambda: store.add("a", 1.5)),
        (TypeError, "timedelta", lambda: store.set_timeout("3")),
        (RuntimeError, "negative", lambda: store.set_timeout(timedelta(seconds=-1))),
        (RuntimeError, "one value for each key", lambda: store.multi_set(["a", "b"], ["1"])),
        (RuntimeError, "at least one worker", lambda: store.barrier("a", 0)),
    ]
    for kind, words, call in refused:
        with pytest.raises(kind, match=words) as caught:
            call()
        assert isinstance(caught.value, UsageError)
    store.set("text", "x")
    with pytest.raises(ValueError, match="not a counter"):
        store.add("text", 1)


def test_keys_as_bytes_are_the_text_that_they_encode(store: dist.Store) -> None:
    store.set("é".encode(), "1")
    assert store.get("é") == b"1" and store.check([b"\xc3\xa9"]) and store.multi_get([b"\xc3\xa9"]) == [b"1"]
    assert store.add(b"n", 2) == 2 and store.get("n") == b"2" and store.delete_key(b"n") and not store.check(["n"])
    store.multi_set([b"a"], ["x"])
    store.append(b"a", "y")
    assert store.compare_set(b"a", "xy", "z") == b"z" and store.get("a") == b"z"
    store.queue_push(b"line", "1")
    assert store.queue_len("line") == 1 and store.queue_pop(b"line") == b"1"


@pytest.mark.parametrize("attempt", [copy.copy, copy.deepcopy, pickle.dumps])
def test_a_store_is_neither_copied_nor_pickled(store: dist.Store, attempt: Callable[[Any], Any]) -> None:
    with pytest.raises(TypeError, match="cannot pickle or copy .*clone"):
        attempt(getattr(store, "underlying_store", store))
    store.set("a", "x")
    assert store.get("a") == b"x"


def test_a_closed_store_says_so(tmp_path: Path) -> None:
    path = tmp_path / "f"
    for made in (dist.HashStore(), dist.FileStore(str(path)), dist.TCPStore(HERE, 0, None, True)):
        made.close()
        made.close()
        with pytest.raises(RendezvousError, match="closed"):
            made.set("a", "b")
    assert not path.exists()


def test_a_dropped_store_is_closed(tmp_path: Path) -> None:
    path = tmp_path / "f"
    made: list[dist.Store] = [dist.HashStore(), dist.FileStore(str(path)), dist.TCPStore(HERE, 0, 1, True)]
    for each in made:
        each.set("a", "b")
        with pytest.raises(TimeoutError):
            each.wait(["never"], SHORT)
    assert path.exists()
    made.clear()
    del each
    gc.collect()
    assert not path.exists()


# ------------------------------------------------------------------------------------------------ over a port


def test_workers_of_a_tcp_store() -> None:
    with dist.TCPStore(HERE, 0, None, True) as master:
        assert (master.host, master.num_keys(), master.libuvBackend) == (HERE, 0, False)

        def client(number: int) -> bytes:
            with dist.TCPStore(HERE, master.port, world_size=3, timeout=timedelta(seconds=20)) as one:
                one.set(f"from {number}", str(number))
                return one.get(f"from {(number + 1) % 3}")

        with ThreadPoolExecutor(3) as pool:
            assert list(pool.map(client, range(3))) == [b"1", b"2", b"0"]
        assert "init/" not in master.list_keys()


def test_the_master_waits_for_its_workers() -> None:
    port = free_port()
    with ThreadPoolExecutor(2) as pool:
        client = pool.submit(dist.TCPStore, HERE, port, 2, False, timedelta(seconds=20))
        with dist.TCPStore(HERE, port, 2, True, timedelta(seconds=20)) as master, client.result(20) as one:
            one.set("a", "b")
            assert master.get("a") == b"b" and master.num_keys() == 2  # one counts the workers
    with pytest.raises(TimeoutError, match="1/2 clients joined"):
        dist.TCPStore(HERE, 0, 2, True, timedelta(milliseconds=50))
    with dist.TCPStore(HERE, 0, 2, True, SHORT, wait_for_workers=False) as alone:
        assert alone.num_keys() == 0


def test_i6_a_socket_that_is_bound_already() -> None:
    """A port that somebody has reserved: the bound socket itself is handed over, so nobody can come between."""
    reserved = socket.socket()
    reserved.bind((HERE, 0))
    port = reserved.getsockname()[1]
    with pytest.raises(OSError):  # the thief
        socket.create_server((HERE, port))
    descriptor = reserved.detach()
    with dist.TCPStore(HERE, port, 1, True, master_listen_fd=descriptor) as master:
        assert master.port == port
        with dist.TCPStore(HERE, port, master_listen_fd=0) as one:  # of no use to a client, which leaves it alone
            one.set("a", "1")
        assert master.get("a") == b"1"
    os.fstat(0)


def test_refused_addresses() -> None:
    for words, call in (
        ("only loopback", lambda: dist.TCPStore("0.0.0.0", 0, 1, True)),
        ("from 0 to 65535", lambda: dist.TCPStore(HERE, 65536, 1, True)),
        ("from 0 to 65535", lambda: dist.TCPStore(HERE, 0)),
        ("world_size=0", lambda: dist.TCPStore(HERE, 0, 0, True)),
        ("could not be reached", lambda: dist.TCPStore(HERE, free_port(), timeout=SHORT)),
    ):
        with pytest.raises(RuntimeError, match=words):
            call()
    for call in (lambda: dist.TCPStore(3, 0), lambda: dist.FileStore(3), lambda: dist.PrefixStore("a", object())):
        with pytest.raises(TypeError):
            call()
    with pytest.raises(RendezvousError, match="cannot be opened"):
        dist.FileStore("/nowhere/at/all")


def test_a_forked_child_is_told() -> None:
    body = """
    import warnings; warnings.simplefilter("ignore")
    from aiocoll.errors import RendezvousError
    store = dist.HashStore(); store.set("a", "1")
    read, write = os.pipe()
    if os.fork() == 0:
        try:
            store.get("a")
        except RendezvousError as error:
            os.write(write, str(error).encode())
        own = dist.HashStore(); own.set("b", "2")
        os.write(write, b" and " + own.get("b"))
        os._exit(0)
    os.wait(); os.close(write)
    answer = [os.read(read, 1000).decode(), store.get("a").decode()]
    """
    ((said, value),) = spawn(1, body)
    assert "forked child" in said and said.endswith(" and 2") and value == "1"


def test_a_program_may_end_with_a_store_open() -> None:
    body = f"""
    port = {free_port()}
    store = dist.TCPStore("127.0.0.1", port, size, rank == 0)
    store.set(str(rank), str(rank)); store.wait(["0", "1"])
    answer = store.get(str(1 - rank)).decode()
    """
    assert spawn(2, body) == ["1", "0"]
    assert "AIOCOLL_SECRET" not in os.environ


def test_a_store_that_is_told_its_place_asks_no_launcher(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PMI_RANK", "1")  # as a child of a rank of mpiexec inherits it, without the descriptor
    monkeypatch.setenv("PMI_SIZE", "4")
    store = dist.TCPStore("127.0.0.1", 0, 1, True)
    store.set("key", "value")
    assert store.get("key") == b"value"
    del store
