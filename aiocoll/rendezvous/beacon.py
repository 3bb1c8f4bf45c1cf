"""Datagrams to a multicast address, sent and heard; the rule: nothing is believed that the job's secret does not prove.

Without a secret only this host is spoken to: over loopback, or, where loopback carries no multicast (IPv6), with a hop
limit of 0, which no network passes on; and only what comes from an address of this host is heard.
"""

from __future__ import annotations

import contextlib
import hashlib
import hmac
import socket
import struct
from collections.abc import Iterator
from typing import Any

import msgpack

from aiocoll.errors import RendezvousError
from aiocoll.rendezvous.hosts import is_local, is_loopback
from aiocoll.store.stream import scoped

MAGIC = b"aCmc\x01"
MAC_BYTES = 32
DATAGRAM_BYTES_MAX = 1400
DATAGRAMS_PER_LOOK_MAX = 256
STRANGERS_MAX = 16

# Linux's, which Python does not name: hear only the groups that this very socket has joined.
_IP_MULTICAST_ALL = 49
_IPV6_MULTICAST_ALL = 29
_HOPS = 1


class Beacon:
    """One open mouth and ear at a multicast address; all of it is synchronous and never blocks."""

    group: str
    port: int

    def __init__(self, address: tuple[Any, ...], *, secret: bytes, job: str) -> None:
        self.group, self.port = str(address[0]), int(address[1])
        self._family = socket.AF_INET6 if ":" in self.group else socket.AF_INET
        self._home_only = not secret
        self._key = hmac.digest(b"aiocoll multicast 1", secret + b"\0" + job.encode(), hashlib.sha256)
        self._mouths: list[socket.socket] = []
        self.strangers: dict[str, str] = {}
        """Source address to what was wrong with what it sent; bounded."""
        self.ear: socket.socket = socket.socket(self._family, socket.SOCK_DGRAM)
        try:
            self._open()
        except BaseException:
            self.close()
            raise

    def __repr__(self) -> str:
        return f"<Beacon {self.group} port {self.port}, {len(self._mouths)} interfaces>"

    def send(self, message: dict[str, Any]) -> None:
        """Says it on every interface; one that is down says nothing."""
        payload = msgpack.packb(message)
        data = MAGIC + hmac.digest(self._key, payload, hashlib.sha256) + payload
        assert len(data) <= DATAGRAM_BYTES_MAX
        for mouth in self._mouths:
            with contextlib.suppress(OSError):  # an interface that is down, or a full queue: it is said again
                mouth.send(data)

    def heard(self) -> Iterator[tuple[str, dict[str, Any]]]:
        """What has come since the last look, as (source address, message)."""
        for _ in range(DATAGRAMS_PER_LOOK_MAX):
            try:
                data, source = self.ear.recvfrom(DATAGRAM_BYTES_MAX + 1)
            except OSError:
                return
            message = self._open_envelope(data, source)
            if message is not None:
                yield scoped(source), message

    def close(self) -> None:
        """Closes every socket; again does nothing."""
        for sock in (self.ear, *self._mouths):
            sock.close()

    def _open_envelope(self, data: bytes, source: tuple[Any, ...]) -> dict[str, Any] | None:
        if self._home_only and not is_loopback(source[0]) and not is_local(source):
            return None
        mac, payload = data[len(MAGIC) : len(MAGIC) + MAC_BYTES], data[len(MAGIC) + MAC_BYTES :]
        if not data.startswith(MAGIC) or len(data) > DATAGRAM_BYTES_MAX:
            why = "it does not speak aiocoll's protocol"
        elif not hmac.compare_digest(mac, hmac.digest(self._key, payload, hashlib.sha256)):
            why = "its job or secret differs"
        else:
            with contextlib.suppress(ValueError, msgpack.UnpackException):  # what is no message is refused below
                message = msgpack.unpackb(payload)
                if isinstance(message, dict):
                    return message
            why = "it speaks another version"
        self.note_stranger(f"{source[0]} port {source[1]}", why)
        return None

    def note_stranger(self, source: str, why: str) -> None:
        """Remembers, boundedly, who said what nobody here can use."""
        if len(self.strangers) < STRANGERS_MAX:
            self.strangers.setdefault(source, why)

    # -- sockets

    def _open(self) -> None:
        self.ear.setblocking(False)
        self.ear.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            self.ear.bind((self.group, self.port))
        except OSError as error:
            raise RendezvousError(
                f"tcp://{self.group}:{self.port}: cannot listen for multicast: {error.strerror}"
            ) from error
        with contextlib.suppress(OSError):  # an older kernel: what other groups say is heard, and dropped
            if self._family == socket.AF_INET:
                self.ear.setsockopt(socket.IPPROTO_IP, _IP_MULTICAST_ALL, 0)
            else:
                self.ear.setsockopt(socket.IPPROTO_IPV6, _IPV6_MULTICAST_ALL, 0)
        names = sorted(socket.if_nameindex(), key=lambda item: item[1] != "lo")
        for index, name in names:
            if self._home_only and name != "lo" and self._mouths:
                break  # loopback does
            hops = 0 if self._home_only else _HOPS
            with contextlib.suppress(OSError):  # an interface without multicast; below, whether any is left
                self._open_interface(index, name, hops)
        if not self._mouths:
            raise RendezvousError(
                f"tcp://{self.group}:{self.port}: no interface of this host carries multicast: name rank 0's address "
                f"instead, tcp://host:port"
            )

    def _open_interface(self, index: int, name: str, hops: int) -> None:
        """Joins the group there; OSError if that interface cannot."""
        mouth = socket.socket(self._family, socket.SOCK_DGRAM)
        try:
            mouth.setblocking(False)
            if self._family == socket.AF_INET:
                interface = struct.pack("=4s4si", bytes(4), bytes(4), index)
                mouth.setsockopt(socket.IPPROTO_IP, socket.IP_MULTICAST_IF, interface)
                mouth.setsockopt(socket.IPPROTO_IP, socket.IP_MULTICAST_TTL, hops)
                mouth.setsockopt(socket.IPPROTO_IP, socket.IP_MULTICAST_LOOP, 1)
                if name == "lo":
                    mouth.bind(("127.0.0.1", 0))
                mouth.connect((self.group, self.port))
                member = socket.inet_aton(self.group) + bytes(4) + struct.pack("=i", index)
                self.ear.setsockopt(socket.IPPROTO_IP, socket.IP_ADD_MEMBERSHIP, member)
            else:
                mouth.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_MULTICAST_IF, index)
                mouth.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_MULTICAST_HOPS, hops)
                mouth.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_MULTICAST_LOOP, 1)
                mouth.connect((self.group, self.port, 0, index))
                member = socket.inet_pton(socket.AF_INET6, self.group) + struct.pack("=i", index)
                self.ear.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_JOIN_GROUP, member)
        except BaseException:
            mouth.close()
            raise
        self._mouths.append(mouth)
