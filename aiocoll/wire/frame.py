"""Frames: a fixed header, a short meta block and a payload; nothing is reserved before its length has been checked.

A frame is ``header (40 bytes) | meta | payload``. The header names the key (group, call, step) that the frame belongs
to, so that frames of many calls can share one connection in any order.

    0     2  3    4        12     20     24     28       36      40
    | aC | v| kind| group  | call | step | meta | length | check | meta... | payload...

``check`` is made of the header (its lower half) and of the meta (its upper half): bytes that were changed on their way
end the connection at once, where a changed length or key would be waited for in vain. Payloads have no such check: TCP
has one of its own, and another would cost as much as the copy.
"""

from __future__ import annotations

import struct
from binascii import crc32
from typing import Final, Protocol

from ..errors import WireError

MAGIC: Final = b"aC"
VERSION: Final = 2
HEADER: Final = struct.Struct("<2sBBQQIIQI")
HEADER_BYTES: Final = HEADER.size
_HEAD: Final = struct.Struct("<2sBBQQIIQ")
_HEAD_BYTES: Final = _HEAD.size
_CHECK: Final = struct.Struct("<I")
_HALF: Final = 0xFFFF
META_BYTES_MAX: Final = 32 * 1024
PAYLOAD_BYTES_MAX: Final = 1 << 48

# Kinds. DATA is a step of a collective, MESSAGE a point-to-point message. What does not fit the receiver's bound for
# unexpected data is offered first (its meta starts with the size), and its BODY follows once it has been granted.
DATA: Final = 1
MESSAGE: Final = 2
OFFER_DATA: Final = 3
OFFER_MESSAGE: Final = 4
GRANT_DATA: Final = 5
GRANT_MESSAGE: Final = 6
BODY_DATA: Final = 7
BODY_MESSAGE: Final = 8
CREDIT: Final = 9
CONTROL: Final = 10
BYE: Final = 11
KIND_MAX: Final = BYE


def pack_header(kind: int, group: int, call: int, step: int, meta: bytes, length: int) -> bytes:
    """The 40 bytes that open a frame, and its meta."""
    head = _HEAD.pack(MAGIC, VERSION, kind, group, call, step, len(meta), length)
    if not meta:
        return head + _CHECK.pack(crc32(head) & _HALF)
    return head + _CHECK.pack(crc32(head) & _HALF | (crc32(meta) & _HALF) << 16) + meta


class Landing(Protocol):
    """Where the payload of one frame goes."""

    def window(self) -> memoryview:
        """Writable bytes for what comes next: never empty while payload is missing, never longer than what is missing
        unless the landing is a drain (the reader cuts it)."""

    def advance(self, nbytes: int) -> None:
        """That many bytes have been written into the last window."""

    def complete(self) -> None:
        """The whole payload is in."""


def pour(data: memoryview, landing: Landing) -> None:
    """Puts ``data``, a part of one payload, into ``landing``."""
    position = 0
    while position < len(data):
        window = landing.window()
        nbytes = min(len(window), len(data) - position)
        window[:nbytes] = data[position : position + nbytes]
        position += nbytes
        landing.advance(nbytes)


DRAIN: Final = memoryview(bytearray(256 * 1024))
"""Where bytes go that nobody wants any more."""


class Drain:
    """The landing of a payload that nobody wants."""

    __slots__ = ()

    def window(self) -> memoryview:
        return DRAIN

    def advance(self, nbytes: int) -> None:
        return

    def complete(self) -> None:
        return


class FrameSink(Protocol):
    """Who is told of every frame."""

    def arriving(self, kind: int, group: int, call: int, step: int, meta: bytes, length: int) -> Landing | None:
        """A header and its meta are in; says where the payload goes (None: nothing to do, only for an empty one).
        Raises WireError for what no correct peer sends."""


_SCRATCH_BYTES: Final = 64 * 1024
_DIRECT_BYTES_MIN: Final = 8 * 1024


class FrameReader:
    """Turns received bytes, split anywhere, into calls of a FrameSink.

    Use: write at most ``len(reader.buffer())`` bytes into ``reader.buffer()``, then say how many with ``received(n)``.
    Long payloads are received straight into their landing; headers and short payloads pass through a scratch buffer,
    so that one system call takes in many small frames. After a WireError the reader must not be used again.
    """

    __slots__ = (
        "_end", "_landing", "_length", "_meta_max", "_missing", "_payload_max", "_scratch", "_sink", "_start", "_view",
    )  # fmt: skip

    def __init__(
        self, sink: FrameSink, *, meta_bytes_max: int = META_BYTES_MAX, payload_bytes_max: int = PAYLOAD_BYTES_MAX
    ) -> None:
        self._sink = sink
        self._meta_max = min(meta_bytes_max, META_BYTES_MAX)
        self._payload_max = payload_bytes_max
        self._scratch = bytearray(_SCRATCH_BYTES)
        self._view = memoryview(self._scratch)
        self._start = self._end = 0
        self._landing: Landing | None = None
        self._missing = self._length = 0

    def __repr__(self) -> str:
        return f"<FrameReader {self._end - self._start} bytes unparsed, {self._missing} of a payload missing>"

    @property
    def idle(self) -> bool:
        """True between two frames: a connection that ends here was cut cleanly."""
        return self._missing == 0 and self._end == self._start

    @property
    def position(self) -> str:
        """How much of the present frame is in, in words."""
        if self._missing:
            return f"{self._length - self._missing} of {self._length} bytes of its payload had come"
        have = self._end - self._start
        if have < HEADER_BYTES:
            return f"{have} of {HEADER_BYTES} bytes of its header had come"
        meta_bytes = HEADER.unpack_from(self._scratch, self._start)[6]
        return f"{have - HEADER_BYTES} of {meta_bytes} bytes of its description had come"

    def buffer(self) -> memoryview:
        """Where the next received bytes go (never empty)."""
        if self._missing >= _DIRECT_BYTES_MIN and self._landing is not None:
            window = self._landing.window()
            return window if len(window) <= self._missing else window[: self._missing]
        return self._view[self._end :]

    def received(self, nbytes: int) -> None:
        """``nbytes`` bytes were written into what ``buffer()`` returned last."""
        if self._missing >= _DIRECT_BYTES_MIN and self._landing is not None:
            self._missing -= nbytes
            self._landing.advance(nbytes)
            if self._missing == 0:
                self._finish()
            return
        self._end += nbytes
        self._parse()

    def _finish(self) -> None:
        landing, self._landing = self._landing, None
        if landing is not None:
            landing.complete()

    def _parse(self) -> None:
        while True:
            if self._missing:
                self._deliver()
                if self._missing:
                    return
            have = self._end - self._start
            if have < HEADER_BYTES:
                break
            start = self._start
            magic, version, kind, group, call, step, meta_bytes, length, check = HEADER.unpack_from(
                self._scratch, start
            )
            if magic != MAGIC or version != VERSION or not 0 < kind <= KIND_MAX:
                raise WireError(f"not a frame: {bytes(self._view[start : start + HEADER_BYTES])!r}")
            if crc32(self._view[start : start + _HEAD_BYTES]) & _HALF != (check & _HALF if meta_bytes else check):
                raise WireError(f"a changed header: {bytes(self._view[start : start + HEADER_BYTES])!r}")
            if meta_bytes > self._meta_max or length > self._payload_max:
                raise WireError(f"frame too large: meta of {meta_bytes} bytes, payload of {length} bytes")
            if have < HEADER_BYTES + meta_bytes:
                break
            body = start + HEADER_BYTES + meta_bytes
            meta = b""
            if meta_bytes:
                meta = bytes(self._view[start + HEADER_BYTES : body])
                if crc32(meta) & _HALF != check >> 16:
                    raise WireError(f"a changed description: {meta[:64]!r}")
            self._start = body
            landing = self._sink.arriving(kind, group, call, step, meta, length)
            if length:
                if landing is None:
                    raise WireError(f"frame kind {kind} carries a payload of {length} bytes that has no place")
                self._landing, self._missing, self._length = landing, length, length
            elif landing is not None:
                landing.complete()
        self._compact()

    def _deliver(self) -> None:
        landing = self._landing
        assert landing is not None
        start = self._start
        nbytes = min(self._missing, self._end - start)
        self._start += nbytes
        self._missing -= nbytes
        pour(self._view[start : start + nbytes], landing)
        if self._start == self._end:
            self._start = self._end = 0
        if self._missing == 0:
            self._finish()

    def _compact(self) -> None:
        start, end = self._start, self._end
        if start == end:
            self._start = self._end = 0
        elif start:
            self._view[: end - start] = self._view[start:end]
            self._start, self._end = 0, end - start
