"""register_rendezvous_handler and rendezvous: from a URL to a store, a rank and a world size.

The rule: ``tcp``, ``env`` and ``file`` give a store of this package; a program's own scheme gives whatever store it
likes, and ``init_process_group`` meets in it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import timedelta
from typing import Any
from urllib.parse import SplitResult, urlsplit

from ..place import detect
from ..place.torch_variables import read
from ..rendezvous.url import parse, tcp_url
from .arguments import integer
from .environment import from_environment
from .refusals import AssertionUsageError, RuntimeUsageError, TypeUsageError
from .stores import FileStore, Store, TCPStore

Found = tuple[Any, int, int]
"""The store, my rank, how many ranks there are."""
Handler = Callable[..., Iterator[Found]]

_TIMEOUT = timedelta(minutes=30)
_HANDLERS: dict[str, Handler] = {}
"""Those of programs, by scheme."""


def register_rendezvous_handler(scheme: str, handler: Handler) -> None:
    """Registers a new rendezvous handler.

    Arguments:
        scheme: URL scheme, ``init_process_group(init_method="scheme://…")`` and ``rendezvous()`` use it.
        handler: A generator function of the URL, whose query holds ``rank`` and ``world_size`` where they were given,
            and of keywords such as ``timeout``; it yields (store, rank, world_size).
    """
    if not isinstance(scheme, str) or not callable(handler):
        raise TypeUsageError("register_rendezvous_handler: a scheme (str) and a handler (a generator function)")
    if scheme in _HANDLERS or scheme in _OWN:
        raise RuntimeUsageError(f"Rendezvous handler for {scheme}:// already registered")
    _HANDLERS[scheme] = handler


def rendezvous(url: str, rank: int = -1, world_size: int = -1, **kwargs: Any) -> Iterator[Found]:
    """An iterator over (store, rank, world_size), as the URL's scheme gives them.

    Arguments:
        url: ``tcp://host:port``, ``env://``, ``file:///path``, or a URL of a registered scheme; rank and world_size may
            stand in its query (``?rank=0&world_size=2``) instead.
        rank: Rank of the current process; -1 where the URL or the environment says it.
        world_size: Number of processes, likewise.
        kwargs: Given to the handler; ``timeout`` (a timedelta) holds for the store.
    """
    if not isinstance(url, str):
        raise RuntimeUsageError(f"`url` must be a string. {type(url)}: {url}")
    place, size = integer(rank, "rendezvous", "`rank`"), integer(world_size, "rendezvous", "`world_size`")
    parts = _parts(url)
    handler = _HANDLERS.get(parts.scheme) or _OWN.get(parts.scheme)
    if handler is None:
        known = ", ".join(f"{each}://" for each in sorted({*_OWN, *_HANDLERS}))
        raise RuntimeUsageError(f"No rendezvous handler for {parts.scheme}://; there are {known}")
    given = {name: value for name, value in (("rank", place), ("world_size", size)) if value != -1}
    said = _query(parts)
    if given and not said.keys().isdisjoint(("rank", "world_size")):
        raise AssertionUsageError(f"The url: {url} has node-specific arguments(rank, world_size) already.")
    for name, value in given.items():
        said[name] = str(value)
    query = "&".join(f"{name}={value}" for name, value in said.items())
    return handler(f"{url.partition('?')[0]}?{query}" if given else url, **kwargs)


def is_registered(url: str) -> bool:
    """Whether a program has registered a handler for this URL's scheme."""
    return url.partition("://")[0] in _HANDLERS


def registered(url: str, rank: int | None, size: int | None, limit: float | None) -> Found:
    """What a program's own handler gives ``init_process_group``."""
    more = {} if limit is None else {"timeout": timedelta(seconds=limit)}
    try:
        store, place, count = next(rendezvous(url, -1 if rank is None else rank, -1 if size is None else size, **more))
    except StopIteration:
        raise RuntimeUsageError(f"the rendezvous handler of {url!r} yields no (store, rank, world_size)") from None
    except (TypeError, ValueError) as error:
        if isinstance(error, RuntimeError | AssertionError):
            raise
        raise RuntimeUsageError(f"the rendezvous handler of {url!r} failed: {error}") from error
    return store, integer(place, f"the handler of {url!r}", "rank"), integer(count, f"the handler of {url!r}", "size")


# ------------------------------------------------------------------------------------------------ the own schemes


def _tcp(url: str, timeout: timedelta = _TIMEOUT, **kwargs: Any) -> Iterator[Found]:
    parts = _parts(url)
    try:
        port = parts.port
    except ValueError as error:
        raise _malformed(url, error) from error
    if not parts.hostname or port is None:
        raise _trouble("tcp", f"port number missing in {url!r}")
    rank, size = _who(parts, "tcp")
    yield TCPStore(parts.hostname, port, size, rank == 0, timeout, multi_tenant=True), rank, size
    raise RuntimeUsageError("Unable to perform re-rendezvous using tcp:// method")


def _file(url: str, timeout: timedelta = _TIMEOUT, **kwargs: Any) -> Iterator[Found]:
    parts = urlsplit(url)
    if not parts.path:
        raise _trouble("file", "path missing")
    rank, size = _who(parts, "file")
    store: Store = FileStore(parts.path, size)
    store.set_timeout(timeout)
    yield store, rank, size
    raise RuntimeUsageError("Unable to perform rerendezvous using file:// method")


def _env(url: str, timeout: timedelta = _TIMEOUT, **kwargs: Any) -> Iterator[Found]:
    size, rank = from_environment(None, None, parse(url))
    place, said = detect(told=True), read()
    hosted = place.store_is_hosted and not said.moved
    where = parse(place.init_method) if hosted else parse(tcp_url(said.host or "127.0.0.1", said.port))
    if where.scheme == "file":
        yield FileStore(where.path, size), rank, size
    else:
        yield TCPStore(where.host, where.port, size, rank == 0 and not hosted, timeout, multi_tenant=True), rank, size
    raise RuntimeUsageError("Unable to perform re-rendezvous using env:// method")


_OWN: dict[str, Handler] = {"tcp": _tcp, "file": _file, "env": _env}


def _parts(url: str) -> SplitResult:
    try:
        return urlsplit(url)
    except ValueError as error:
        raise _malformed(url, error) from error


def _malformed(url: str, error: ValueError) -> RuntimeUsageError:
    return RuntimeUsageError(f"rendezvous: the URL {url!r} is malformed: {error}")


def _query(parts: SplitResult) -> dict[str, str]:
    return {name: value for name, _, value in (item.partition("=") for item in filter(None, parts.query.split("&")))}


def _who(parts: SplitResult, scheme: str) -> tuple[int, int]:
    said = _query(parts)
    for name, words in (("rank", "rank"), ("world_size", "world size")):
        if not said.get(name, "").isdigit():
            raise _trouble(scheme, f"{words} parameter missing: give {name}=, or ?{name}= in the URL")
    return int(said["rank"]), int(said["world_size"])


def _trouble(scheme: str, why: str) -> RuntimeUsageError:
    return RuntimeUsageError(f"Error initializing torch.distributed using {scheme}:// rendezvous: {why}")
