"""The sockets on which a store is served; the rule: what was asked for, and without a secret only loopback."""

from __future__ import annotations

import errno
import ipaddress
import socket
from typing import Any

from aiocoll.errors import RendezvousError, UsageError
from aiocoll.store.stream import address_text


def listen(host: str, port: int, *, secret: bytes, sock: socket.socket | None = None) -> list[socket.socket]:
    """Listening sockets on every address of ``host``, all with one port; or ``sock``, checked.

    UsageError for anything but loopback without a secret; RendezvousError when the address cannot be had.
    """
    if sock is not None:
        _require_secret(sock.getsockname()[0], sock.getsockname()[0], secret)
        sock.listen(1024)
        return [sock]
    at = address_text(host, port)
    try:
        found = socket.getaddrinfo(host or None, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    except OSError as error:
        raise RendezvousError(f"store: cannot resolve {host!r} to listen on: {error.strerror or error}") from error
    addresses = list(dict.fromkeys((info[0], info[4]) for info in found))
    for _, address in addresses:
        _require_secret(host, str(address[0]), secret)
    listeners: list[socket.socket] = []
    problem: OSError | None = None
    for family, address in addresses:
        wanted = (address[0], listeners[0].getsockname()[1] if listeners else port, *address[2:])
        try:
            listeners.append(_bind(family, wanted))
        except OSError as error:
            problem = error
            if error.errno == errno.EADDRINUSE:
                break
    if not listeners or (problem is not None and problem.errno == errno.EADDRINUSE):
        for listener in listeners:
            listener.close()
        assert problem is not None
        advice = (
            "another program has it: choose another port or 0" if problem.errno == errno.EADDRINUSE else "see host="
        )
        raise RendezvousError(f"store: cannot listen on {at}: {problem.strerror} ({advice})") from problem
    return listeners


def host_of(host: str, sock: socket.socket | None) -> str:
    """The host under which that is served: as given, or the socket's own address."""
    return str(sock.getsockname()[0]) if sock is not None else host


def _bind(family: int, address: tuple[Any, ...]) -> socket.socket:
    sock = socket.socket(family, socket.SOCK_STREAM)
    try:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if family == socket.AF_INET6:
            sock.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
        sock.bind(address)
        sock.listen(1024)
    except BaseException:
        sock.close()
        raise
    return sock


def _require_secret(host: str, address: str, secret: bytes) -> None:
    if not secret and not ipaddress.ip_address(address.partition("%")[0]).is_loopback:
        raise UsageError(
            f"store: without a secret only loopback addresses may be bound, not {host or 'every interface'}: "
            "give every rank the same secret=, or start them with `aiocoll run`, which makes one"
        )
