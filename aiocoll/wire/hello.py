"""The handshake that opens every connection; the rule: fixed sizes, and nothing else is parsed before proof.

    client -> server    hello                   who I am, whom I want, a nonce
    server -> client    hello, proof            or a refusal: a hello with a reason and no proof
    client -> server    proof                   and at once whatever it has to say

A proof is HMAC-SHA256 over (side, both hellos) under a key made of the secret and the job, so it holds for one job, one
pair of identities, one direction and one connection: reflected, replayed, truncated and relabelled hellos all fail. The
server proves first, so anybody who can connect may try secrets at leisure: secrets must be random, not words (the
runner makes 32 bytes). The machines below do no I/O: feed them what arrived, send what they return, and when `feed`
raises send `last_words` and close.
"""

from __future__ import annotations

import hashlib
import hmac
import secrets
import struct
from collections.abc import Callable
from dataclasses import dataclass
from enum import IntEnum

from aiocoll.errors import AuthenticationError, UsageError, WireError

MAGIC = b"aioc"
VERSION = 1

STORE_CLIENT = 1
STORE_SERVER = 2
RANK = 3

# Magic, version, role and reason keep their places in every version, so that two versions can refuse each other.
_HELLO = struct.Struct("!4sHBB16sIIIQ32s")
_PREFIX = struct.Struct("!4sHBB")
HELLO_BYTES = _HELLO.size
PROOF_BYTES = 32
NO_PROOF = bytes(PROOF_BYTES)
STRANGE_BYTES_MAX = 64

_ROLE_NAMES = {STORE_CLIENT: "a store client", STORE_SERVER: "a store server", RANK: "a rank"}
_CLIENT_OF = {STORE_SERVER: STORE_CLIENT, RANK: RANK}


class Reason(IntEnum):
    """Why a server refuses, as one byte of its refusal."""

    NONE = 0
    VERSION = 1
    JOB = 2
    ROLE = 3
    ADDRESSEE = 4
    WORLD = 5
    DUPLICATE = 6
    BUSY = 7
    OTHER = 8


_REASONS = {
    Reason.VERSION: "it speaks another version of aiocoll's protocol: install the same aiocoll on every rank",
    Reason.JOB: "it belongs to another job: compare the job ids and the addresses",
    Reason.ROLE: "it is not the kind of server that was wanted: compare the ports",
    Reason.ADDRESSEE: "it is another rank than the one that was wanted: its address is stale or taken",
    Reason.WORLD: "it belongs to another world (an earlier or later connect() of this job, or one of another size)",
    Reason.DUPLICATE: "it already has a connection from this rank",
    Reason.BUSY: "it has too many connections",
    Reason.OTHER: "it gave no reason",
}


class NotOurs(WireError):
    """The first bytes are not aiocoll's: something else talks here. ``first`` holds at most 64 of them."""

    def __init__(self, first: bytes) -> None:
        self.first: bytes = first[:STRANGE_BYTES_MAX]
        super().__init__(f"the other side does not speak aiocoll's protocol: it sent {self.first!r}")


class Refused(AuthenticationError):
    """Raised by a client whose server refused it, and by an ``admit`` function that wants to give a ``reason``."""

    def __init__(self, message: str, reason: Reason = Reason.OTHER) -> None:
        super().__init__(message)
        self.reason = reason


@dataclass(frozen=True, slots=True)
class Identity:
    """Who I claim to be: ``rank`` of ``size`` in world ``world``, talking to rank ``peer``; stores leave these 0.

    A server that takes any peer leaves ``peer`` at 0: its answer names whoever came.
    """

    role: int
    job: str
    rank: int = 0
    peer: int = 0
    size: int = 0
    world: int = 0

    def __post_init__(self) -> None:
        if self.role not in _ROLE_NAMES:
            raise UsageError(f"hello: role {self.role!r} does not exist; it is one of {sorted(_ROLE_NAMES)}")
        for name, bits in (("rank", 32), ("peer", 32), ("size", 32), ("world", 64)):
            value = getattr(self, name)
            if not 0 <= value < 1 << bits:
                raise UsageError(f"hello: {name}={value!r} does not fit {bits} unsigned bits")


@dataclass(frozen=True, slots=True)
class Theirs:
    """Who the other side claims to be; proved once the machine is ``done``."""

    role: int
    rank: int
    peer: int
    size: int
    world: int

    def __str__(self) -> str:
        if self.role == RANK:
            return f"rank {self.rank} of {self.size}"
        return _ROLE_NAMES.get(self.role, f"role {self.role}")


class _Machine:
    """What both sides share: the buffer, the framing of fixed-size messages, the key."""

    def __init__(self, secret: bytes, me: Identity) -> None:
        if not isinstance(secret, bytes):
            raise UsageError(f"hello: the secret must be bytes, not {type(secret).__name__}")
        self.me = me
        self.done: bool = False
        self.theirs: Theirs | None = None
        self.leftover: bytes = b""
        self.last_words: bytes = b""
        self._job = job_digest(me.job)
        self._key = _key(secret, self._job)
        self._buffer = bytearray()
        self._received = 0
        self._failed = False

    def __repr__(self) -> str:
        state = "failed" if self._failed else "done" if self.done else f"after {self._received} bytes"
        return f"<{type(self).__name__} of {_ROLE_NAMES[self.me.role]}, {state}>"

    def feed(self, data: bytes | bytearray | memoryview) -> bytes:
        """Take bytes that arrived; return bytes to send (may be empty).

        Raises NotOurs, AuthenticationError or WireError; then send ``last_words`` and close, the machine takes no more.
        """
        if self._failed:
            raise WireError("this handshake has failed already")
        self._received += len(data)
        if self.done:
            self.leftover += bytes(data)
            return b""
        self._buffer += data
        try:
            return self._advance()
        except BaseException:
            self._failed = True
            self._buffer.clear()
            raise

    @property
    def begun(self) -> bool:
        """Whether the other side has said anything."""
        return self._received > 0

    def eof(self) -> WireError:
        """The error to raise when the other side closed before the handshake was done."""
        return WireError(f"the other side closed the connection after {self._received} bytes of the handshake")

    def _advance(self) -> bytes:
        raise NotImplementedError

    def _take(self, size: int) -> bytes | None:
        if len(self._buffer) < size:
            return None
        data = bytes(self._buffer[:size])
        del self._buffer[:size]
        return data

    def _finish(self) -> None:
        self.done = True
        self.leftover = bytes(self._buffer)
        self._buffer.clear()

    def _refuse(self, reason: Reason) -> None:
        self.last_words = _HELLO.pack(MAGIC, VERSION, self.me.role, reason, bytes(16), 0, 0, 0, 0, bytes(32))

    def _look_at_prefix(self) -> tuple[int, int] | None:
        """(version, reason) as soon as they are there; anything but our magic is refused at its first wrong byte."""
        head = bytes(self._buffer[: len(MAGIC)])
        if head != MAGIC[: len(head)]:
            raise NotOurs(bytes(self._buffer[:STRANGE_BYTES_MAX]))
        if len(self._buffer) < _PREFIX.size:
            return None
        _, version, _, reason = _PREFIX.unpack_from(self._buffer)
        return version, reason

    def _hello(self, peer: int) -> bytes:
        me = self.me
        return _HELLO.pack(
            MAGIC, VERSION, me.role, 0, self._job, me.rank, peer, me.size, me.world, secrets.token_bytes(32)
        )


class ClientHello(_Machine):
    """The connecting side: send ``start()``, then feed; ``done`` as soon as the returned proof is to be sent."""

    theirs: Theirs | None

    def __init__(self, secret: bytes, me: Identity, expect_role: int) -> None:
        super().__init__(secret, me)
        self._expect_role = expect_role
        self._mine = self._hello(me.peer)

    def start(self) -> bytes:
        """The hello that opens the connection."""
        return self._mine

    def _advance(self) -> bytes:
        prefix = self._look_at_prefix()
        if prefix is None:
            return b""
        version, reason = prefix
        if version != VERSION:
            raise Refused(
                f"the other side speaks version {version} of the protocol, this side {VERSION}: "
                "install the same aiocoll on every rank",
                Reason.VERSION,
            )
        if reason:
            known = Reason(reason) if reason in _REASONS else Reason.OTHER
            raise Refused(f"the other side refused the connection: {_REASONS[known]}", known)
        answer = self._take(HELLO_BYTES + PROOF_BYTES)
        if answer is None:
            return b""
        hello, proof = answer[:HELLO_BYTES], answer[HELLO_BYTES:]
        job, theirs = _parse(hello)
        if job != self._job:
            raise Refused(
                f"the other side belongs to another job than ours ({self.me.job!r}): compare the job ids", Reason.JOB
            )
        transcript = self._mine + hello
        if not hmac.compare_digest(proof, _proof(self._key, b"server", transcript)):
            # Any wrong proof tells an honest server why we hang up, where silence would look like a network fault.
            self.last_words = NO_PROOF
            raise AuthenticationError(
                f"the other side does not know the secret of job {self.me.job!r}, or knows "
                "another one: give every rank the same secret=, or start them with aiocoll run"
            )
        me = self.me
        if theirs != Theirs(self._expect_role, me.peer, me.rank, me.size, me.world):
            raise AuthenticationError(
                f"the other side proved to be {theirs} in world {theirs.world:#x}, wanted was "
                f"{Theirs(self._expect_role, me.peer, me.rank, me.size, me.world)} "
                f"in world {me.world:#x}"
            )
        self.theirs = theirs
        self._finish()
        return _proof(self._key, b"client", transcript)


def _admit_all(theirs: Theirs) -> None:
    """The default: whoever knows the secret may come in."""


class ServerHello(_Machine):
    """The accepting side; ``admit`` sees the claim before our proof is sent and raises (best: Refused) to refuse it."""

    theirs: Theirs | None

    def __init__(self, secret: bytes, me: Identity, admit: Callable[[Theirs], None] = _admit_all) -> None:
        super().__init__(secret, me)
        if me.role not in _CLIENT_OF:
            raise UsageError(f"hello: {_ROLE_NAMES[me.role]} accepts no connections")
        self._admit = admit
        self._transcript = b""

    def _advance(self) -> bytes:
        if self._transcript:
            return self._check_proof()
        prefix = self._look_at_prefix()
        if prefix is None:
            return b""
        version, reason = prefix
        if version != VERSION:
            self._refuse(Reason.VERSION)
            raise Refused(
                f"the other side speaks version {version} of the protocol, this side {VERSION}", Reason.VERSION
            )
        if reason:
            raise WireError("the other side opened with a refusal, which only servers send")
        hello = self._take(HELLO_BYTES)
        if hello is None:
            return b""
        job, theirs = _parse(hello)
        try:
            self._check_claim(job, theirs)
            self._admit(theirs)
        except BaseException as error:
            self._refuse(error.reason if isinstance(error, Refused) else Reason.OTHER)
            raise
        self.theirs = theirs
        mine = self._hello(theirs.rank)
        self._transcript = hello + mine
        answer = mine + _proof(self._key, b"server", self._transcript)
        return answer + self._check_proof()

    def _check_claim(self, job: bytes, theirs: Theirs) -> None:
        me = self.me
        if job != self._job:
            raise Refused(f"the other side belongs to another job than ours ({me.job!r})", Reason.JOB)
        if theirs.role != _CLIENT_OF[me.role]:
            raise Refused(f"{theirs} came to {_ROLE_NAMES[me.role]}", Reason.ROLE)
        if (theirs.world, theirs.size) != (me.world, me.size):
            raise Refused(
                f"{theirs} in world {theirs.world:#x} came to world {me.world:#x} of size {me.size}", Reason.WORLD
            )
        if theirs.peer != me.rank:
            raise Refused(f"{theirs} wanted rank {theirs.peer}, this is rank {me.rank}", Reason.ADDRESSEE)
        if theirs.role == RANK and (theirs.rank >= me.size or theirs.rank == me.rank):
            raise Refused(f"{theirs} cannot connect to rank {me.rank}", Reason.ADDRESSEE)

    def _check_proof(self) -> bytes:
        proof = self._take(PROOF_BYTES)
        if proof is None:
            return b""
        if not hmac.compare_digest(proof, _proof(self._key, b"client", self._transcript)):
            raise AuthenticationError(
                f"{self.theirs} does not know the secret of job {self.me.job!r}, or knows another one"
            )
        self._finish()
        return b""


def claimed(data: bytes) -> Theirs | None:
    """Who a connection that opens with these bytes claims to be; None: they are no whole hello."""
    if len(data) < HELLO_BYTES or data[: len(MAGIC)] != MAGIC:
        return None
    return _parse(data[:HELLO_BYTES])[1]


def job_digest(job: str) -> bytes:
    """The 16 bytes that stand for a job id of any length."""
    return hashlib.blake2b(job.encode(), digest_size=16).digest()


def _key(secret: bytes, job: bytes) -> bytes:
    return hmac.digest(hmac.digest(b"aiocoll-v1", secret, "sha256"), b"auth" + job, "sha256")


def _proof(key: bytes, side: bytes, transcript: bytes) -> bytes:
    return hmac.digest(key, side + transcript, "sha256")


def _parse(hello: bytes) -> tuple[bytes, Theirs]:
    _, _, role, _, job, src, dst, size, world, _ = _HELLO.unpack(hello)
    return job, Theirs(role, src, dst, size, world)
