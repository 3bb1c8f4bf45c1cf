"""Addresses of this host and whom they reach; the rule: no other host is told an address that works only at home."""

from __future__ import annotations

import ipaddress
import socket
from collections.abc import Mapping, Sequence
from typing import Any

from aiocoll.errors import RendezvousError, UsageError
from aiocoll.store.stream import scoped

# Documentation prefixes (RFC 5737, RFC 3849): no packet is sent, the kernel only picks the interface it would use.
_ELSEWHERE = ("198.51.100.1", "2001:db8::1")


def outward() -> str:
    """The address of the interface that faces other hosts; loopback when there is none."""
    for elsewhere in _ELSEWHERE:
        family = socket.AF_INET6 if ":" in elsewhere else socket.AF_INET
        local = _source_towards(family, (elsewhere, 9))
        if local and not is_loopback(local):
            return local
    return "127.0.0.1"


def is_loopback(address: str) -> bool:
    """Whether an IP address, or the name localhost, is this host's own loopback."""
    try:
        return ipaddress.ip_address(address.partition("%")[0].strip("[]")).is_loopback
    except ValueError:
        return address.lower().rstrip(".") == "localhost"


def is_multicast(address: str) -> bool:
    """Whether an IP address names a group of hosts (224.0.0.0/4, ff00::/8)."""
    try:
        return ipaddress.ip_address(address.partition("%")[0]).is_multicast
    except ValueError:
        return False


def is_local(address: tuple[Any, ...]) -> bool:
    """Whether a socket of this host could be bound to that address."""
    family = socket.AF_INET6 if ":" in address[0] else socket.AF_INET
    with socket.socket(family, socket.SOCK_DGRAM) as sock:
        try:
            sock.bind((address[0], 0, *address[2:]))
        except OSError:
            return False
    return True


def require_secret(where: str) -> UsageError:
    """The error of a start that would be reachable from other hosts and has no secret."""
    return UsageError(
        f"{where}: without a secret only loopback addresses are used, and this is none: give every rank the same "
        f"secret=, or start the ranks with `aiocoll run`, which makes one"
    )


def check_reachable(where: str, members: Sequence[Mapping[str, Any]]) -> None:
    """RendezvousError when the world spans hosts and one of the members advertises its loopback."""
    boots = {member.get("boot") for member in members} - {None, ""}
    if len(boots) < 2:
        return
    for rank, member in enumerate(members):
        address = str(member.get("address", ""))
        if address and is_loopback(address):
            others = sorted({str(m.get("host")) for m in members if m.get("boot") != member.get("boot")})
            raise RendezvousError(
                f"{where}: rank {rank} on {member.get('host')} advertises {address}, its loopback, which the ranks on "
                f"{', '.join(others)} cannot reach: on {member.get('host')} set AIOCOLL_HOST to an address that they "
                f"can, and give the job a secret="
            )


def _source_towards(family: int, address: Any) -> str:
    try:
        with socket.socket(family, socket.SOCK_DGRAM) as sock:
            sock.connect(address)
            return scoped(sock.getsockname())
    except OSError:
        return ""
