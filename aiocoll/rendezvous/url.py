"""Reading ``init_method``, rank and size; the rule: what is wrong is said before any socket or file is opened."""

from __future__ import annotations

import ipaddress
import operator
import re
from dataclasses import dataclass
from typing import SupportsIndex

from aiocoll.errors import UsageError

_SCHEME = re.compile(r"[a-z][a-z0-9+.-]*\Z")
_HOST_NAME = re.compile(r"[A-Za-z0-9_.-]{1,253}\Z")
_SCOPE = re.compile(r"[A-Za-z0-9_.-]{1,32}\Z")
_EXAMPLES = 'write "tcp://host:port", "tcp://[::1]:port", "file:///path" or "env://"'


@dataclass(frozen=True, slots=True)
class Url:
    """An init_method, taken apart; `text` is what was written."""

    text: str
    scheme: str
    host: str = ""
    port: int = 0
    path: str = ""
    rank: int | None = None
    size: int | None = None

    def __str__(self) -> str:
        return self.text


def parse(text: object) -> Url:
    """The parts of an init_method; UsageError that quotes it when it is malformed."""
    if not isinstance(text, str):
        raise UsageError(f"init_method={text!r}: a str is needed, {_EXAMPLES}")
    scheme, colon, rest = text.partition("://")
    if not colon or not _SCHEME.match(scheme):
        raise _malformed(text, "it has no scheme")
    if any(ord(letter) < 32 or letter == "\x7f" for letter in text):
        raise _malformed(text, "it has control characters")
    place, _, query = rest.partition("?")
    rank, size = _parse_query(text, query)
    if scheme == "tcp":
        host, port = _parse_host_port(text, place.removesuffix("/"))
        return Url(text, scheme, host=host, port=port, rank=rank, size=size)
    if scheme == "file" and not (place.startswith("/") and place.strip("/")):
        raise _malformed(text, "the path must be absolute, so three slashes follow the colon")
    if scheme == "env" and place:
        raise _malformed(text, "nothing stands behind env:// but a query")
    return Url(text, scheme, path=place, rank=rank, size=size)


def tcp_url(host: str, port: int) -> str:
    """The init_method for host and port; IPv6 addresses get their brackets."""
    return f"tcp://[{host}]:{port}" if ":" in host and not host.startswith("[") else f"tcp://{host}:{port}"


def check_size(size: object, *, what: str = "size") -> int | None:
    """`size` as an int of at least 1, or None; UsageError for anything else, bool and float included."""
    number = _index(size, what)
    if number is not None and number < 1:
        raise UsageError(f"{what}={size!r}: a world has at least 1 rank")
    return number


def check_rank(rank: object, size: int | None, *, what: str = "rank") -> int | None:
    """`rank` as an int within 0..size-1, or None."""
    number = _index(rank, what)
    if number is not None and (number < 0 or (size is not None and number >= size)):
        ranks = "ranks begin at 0" if size is None else f"the ranks of a world of {size} are 0..{size - 1}"
        raise UsageError(f"{what}={rank!r}: {ranks}")
    return number


def _index(value: object, what: str) -> int | None:
    if value is None:
        return None
    if isinstance(value, SupportsIndex) and not isinstance(value, bool):
        try:
            return operator.index(value)
        except TypeError:
            pass  # an array of several, say
    raise UsageError(f"{what}={value!r}: an int is needed, not {type(value).__name__}")


def _malformed(text: str, why: str) -> UsageError:
    return UsageError(f"init_method={text!r} is malformed: {why}; {_EXAMPLES}")


def _parse_query(text: str, query: str) -> tuple[int | None, int | None]:
    found: dict[str, int] = {}
    for item in filter(None, query.split("&")):
        key, _, value = item.partition("=")
        name = {"rank": "rank", "size": "size", "world_size": "size"}.get(key)
        if name is None:
            raise _malformed(text, f"{key!r} is none of rank, size and world_size")
        if not (value.isascii() and value.isdigit()):
            raise _malformed(text, f"{key}={value!r} is no whole number")
        if name in found:
            raise _malformed(text, f"{name} stands there twice")
        found[name] = int(value)
    size = found.get("size")
    if size is not None and size < 1:
        raise _malformed(text, "a world has at least 1 rank")
    rank = found.get("rank")
    if rank is not None and size is not None and rank >= size:
        raise _malformed(text, f"the ranks of a world of {size} are 0..{size - 1}")
    return rank, size


def _parse_host_port(text: str, place: str) -> tuple[str, int]:
    if place.startswith("["):
        host, bracket, port = place[1:].partition("]")
        if not bracket or not _is_ipv6(host):
            raise _malformed(text, "in brackets stands an IPv6 address, such as [::1]")
        if not port.startswith(":"):
            raise _malformed(text, "the port is missing")
        port = port[1:]
    else:
        host, colon, port = place.rpartition(":")
        if ":" in host:
            raise _malformed(text, "an IPv6 address stands in brackets")
        if not colon or not host:
            raise _malformed(text, "it needs both host and port")
        if not _HOST_NAME.match(host):
            raise _malformed(text, f"{host!r} is no host name")
    if not (port.isascii() and port.isdigit() and 0 < int(port) < 65536):
        raise _malformed(text, f"the port {port!r} is not a number from 1 to 65535")
    return host, int(port)


def _is_ipv6(host: str) -> bool:
    address, percent, scope = host.partition("%")
    try:
        ipaddress.IPv6Address(address)
    except ValueError:
        return False
    return not percent or bool(_SCOPE.match(scope))
