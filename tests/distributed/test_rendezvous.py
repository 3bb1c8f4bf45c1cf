"""rendezvous() and register_rendezvous_handler(): from URLs to stores, and from a program's own URLs to a world."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import aiocoll.distributed as dist
from aiocoll.distributed import rendezvous as module
from aiocoll.errors import UsageError
from tests.distributed.ranks import ranks
from tests.ports import free_port


@pytest.fixture
def handlers(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """The registered handlers, which the test may change."""
    import sys

    registered: dict[str, Any] = {}
    monkeypatch.setattr(sys.modules["aiocoll.distributed.rendezvous"], "_HANDLERS", registered)
    return registered


def given(url: str, rank: int = -1, size: int = -1) -> tuple[str, int, int]:
    """What a rank finds there; it leaves its own rank behind for the others."""
    store, place, count = next(dist.rendezvous(url, rank, size, timeout=timedelta(seconds=20)))
    with store:
        store.set(f"of {place}", str(place))
        others = b"".join(store.get(f"of {other}") for other in range(count))
        store.barrier("leaving", count)
        return others.decode(), place, count


def test_the_schemes_that_there_are(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with ThreadPoolExecutor(2) as pool:
        url = f"tcp://127.0.0.1:{free_port()}"
        assert list(pool.map(given, [url, url], [0, 1], [2, 2])) == [("01", 0, 2), ("01", 1, 2)]
        urls = [f"tcp://127.0.0.1:{free_port()}?rank=0&world_size=1"]
        assert [given(each) for each in urls] == [("0", 0, 1)]
        path = f"file://{tmp_path}/meet"
        assert list(pool.map(given, [path, path], [0, 1], [2, 2])) == [("01", 0, 2), ("01", 1, 2)]
        for name, value in (("MASTER_ADDR", "127.0.0.1"), ("MASTER_PORT", str(free_port())), ("WORLD_SIZE", "2")):
            monkeypatch.setenv(name, value)
        assert list(pool.map(given, ["env://"] * 2, [0, 1])) == [("01", 0, 2), ("01", 1, 2)]
    assert not list(tmp_path.iterdir())


def test_there_is_no_second_time(tmp_path: Path) -> None:
    found = dist.rendezvous(f"file://{tmp_path}/meet?rank=0&world_size=1")
    next(found)[0].close()
    with pytest.raises(RuntimeError, match="Unable to perform rerendezvous"):
        next(found)


def test_refused_urls() -> None:
    refused: list[tuple[type[Exception], str, Callable[[], Any]]] = [
        (RuntimeError, "must be a string", lambda: dist.rendezvous(3)),
        (TypeError, "`rank` must be an int", lambda: dist.rendezvous("tcp://h:1", "0")),
        (RuntimeError, "No rendezvous handler for smoke://; there are env://, file://, tcp://",
         lambda: dist.rendezvous("smoke://x")),
        (AssertionError, "node-specific arguments", lambda: dist.rendezvous("tcp://h:1?rank=0", 0, 2)),
        (ValueError, "rank parameter missing", lambda: next(dist.rendezvous("tcp://127.0.0.1:1", -1, 2))),
        (ValueError, "world size parameter missing", lambda: next(dist.rendezvous("file:///x/y", 0))),
        (ValueError, "port number missing", lambda: next(dist.rendezvous("tcp://127.0.0.1", 0, 1))),
        (RuntimeError, "'tcp://h:99999.*' is malformed", lambda: next(dist.rendezvous("tcp://h:99999", 0, 1))),
        (RuntimeError, "'tcp://h:x.*' is malformed", lambda: next(dist.rendezvous("tcp://h:x", 0, 1))),
        (RuntimeError, r"'tcp://\[::1:3' is malformed", lambda: dist.rendezvous("tcp://[::1:3", 0, 1)),
        (ValueError, "path missing", lambda: next(dist.rendezvous("file://", 0, 1))),
        (RuntimeError, "already registered", lambda: dist.register_rendezvous_handler("tcp", given)),
        (TypeError, "a handler", lambda: dist.register_rendezvous_handler("x", None)),
    ]  # fmt: skip
    for kind, words, call in refused:
        with pytest.raises(kind, match=words) as caught:
            call()
        assert isinstance(caught.value, UsageError)


def test_a_program_s_own_scheme(handlers: dict[str, Any]) -> None:
    with dist.HashStore() as shared:

        def handler(url: str, timeout: timedelta | None = None, **more: Any) -> Iterator[tuple[dist.Store, int, int]]:
            assert timeout == timedelta(seconds=20) and url.startswith("here://room")
            said = dict(each.split("=") for each in url.partition("?")[2].split("&") if each)
            rank = int(said.get("rank", shared.add("arrivals", 1) - 1))
            yield dist.PrefixStore("room", shared), rank, int(said.get("world_size", 3))

        dist.register_rendezvous_handler("here", handler)
        assert list(handlers) == ["here"] and module is dist.rendezvous
        with pytest.raises(RuntimeError, match="here:// already registered"):
            dist.register_rendezvous_handler("here", handler)

        def program(_: int) -> Any:
            x = np.arange(3.0) + dist.get_rank()
            dist.all_reduce(x)
            return x.tolist()

        assert ranks(3, program, join=lambda _: {"init_method": "here://room"}) == [[3, 6, 9]] * 3
        unnumbered = {"init_method": "here://room", "rank": -1, "world_size": -1}
        shared.delete_key("arrivals")
        assert ranks(3, program, join=lambda _: unnumbered) == [[3, 6, 9]] * 3


def test_handlers_that_give_nothing(handlers: dict[str, Any]) -> None:
    def empty(url: str, **more: Any) -> Iterator[Any]:
        yield from ()

    def broken(url: str, **more: Any) -> Iterator[Any]:
        raise ValueError("no room")
        yield

    def wrong(url: str, **more: Any) -> Iterator[Any]:
        yield object(), 0, 1

    for name, handler, words in (("a", empty, "yields no"), ("b", broken, "no room"), ("c", wrong, "is no store")):
        dist.register_rendezvous_handler(name, handler)
        with pytest.raises((RuntimeError, TypeError), match=words) as caught:
            dist.init_process_group("tcp", f"{name}://x")
        assert isinstance(caught.value, UsageError) and not dist.is_initialized()
    with pytest.raises(RuntimeError, match="not offered"):
        dist.init_process_group("tcp", "file:///x", rank=0, world_size=1, enable_reconfigure=True)


@pytest.mark.parametrize("size", [0, -2, "2", 2.0, True])
def test_h4_bad_sizes_and_ranks(size: Any, tmp_path: Path) -> None:
    """World sizes and ranks that are none are refused before anything is opened."""
    path = tmp_path / "meet"
    for more in ({"world_size": size, "rank": 0}, {"world_size": 2, "rank": size if size != 0 else 2}):
        with pytest.raises((ValueError, TypeError)) as caught:
            dist.init_process_group("tcp", f"file://{path}", **more)
        assert isinstance(caught.value, UsageError) and not path.exists() and not dist.is_initialized()
    with pytest.raises(ValueError, match="world_size is not set"):
        dist.init_process_group("tcp", f"file://{path}", world_size=None, rank=None)
