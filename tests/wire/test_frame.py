"""Frames: whatever the splits, the same frames come out; whatever the bytes, nothing is reserved before its check."""

from __future__ import annotations

import tracemalloc
from binascii import crc32

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aiocoll.errors import WireError
from aiocoll.wire import frame
from aiocoll.wire.frame import HEADER, HEADER_BYTES, MAGIC, META_BYTES_MAX, VERSION, FrameReader, pack_header

Header = tuple[int, int, int, int, bytes]


class Box:
    """Keeps one payload; its windows have at most ``window_bytes`` bytes."""

    def __init__(self, sink: Box.Sink, header: Header, length: int, window_bytes: int) -> None:
        self.sink, self.header, self.window_bytes = sink, header, window_bytes
        self.data, self.position = bytearray(length), 0

    def window(self) -> memoryview:
        return memoryview(self.data)[self.position : self.position + self.window_bytes]

    def advance(self, nbytes: int) -> None:
        self.position += nbytes

    def complete(self) -> None:
        assert self.position == len(self.data)
        self.sink.frames.append((*self.header, bytes(self.data)))

    class Sink:
        """Collects the frames that are complete."""

        def __init__(self, window_bytes: int = 1 << 20) -> None:
            self.frames: list[tuple[int, int, int, int, bytes, bytes]] = []
            self.window_bytes = window_bytes

        def arriving(self, kind: int, group: int, call: int, step: int, meta: bytes, length: int) -> Box | None:
            if not length:
                self.frames.append((kind, group, call, step, meta, b""))
                return None
            return Box(self, (kind, group, call, step, meta), length, self.window_bytes)


Sink = Box.Sink


class Oversized(Sink):
    """Gives windows that are longer than what is missing, as a drain does."""

    def arriving(self, kind: int, group: int, call: int, step: int, meta: bytes, length: int) -> Drain:
        return Drain(self, (kind, group, call, step, meta), length)


class Drain:
    def __init__(self, sink: Sink, header: Header, length: int) -> None:
        self.sink, self.header, self.length, self.taken = sink, header, length, 0
        self.memory = memoryview(bytearray(100_000))

    def window(self) -> memoryview:
        return self.memory

    def advance(self, nbytes: int) -> None:
        self.taken += nbytes

    def complete(self) -> None:
        assert self.taken == self.length
        self.sink.frames.append((*self.header, b""))


def feed(reader: FrameReader, data: bytes, cuts: list[int]) -> None:
    """As a socket does: at most what ``buffer()`` offers, in pieces of the given sizes (the last for ever)."""
    position, turn = 0, 0
    while position < len(data):
        buffer = reader.buffer()
        assert len(buffer) > 0
        nbytes = min(len(buffer), len(data) - position, cuts[min(turn, len(cuts) - 1)])
        buffer[:nbytes] = data[position : position + nbytes]
        position, turn = position + nbytes, turn + 1
        reader.received(nbytes)


numbers = st.integers(0, 2**64 - 1)
payloads = st.one_of(
    st.binary(max_size=200), st.integers(0, 40_000).map(lambda n: bytes((i * 7 + n) % 256 for i in range(n)))
)
frames = st.tuples(
    st.integers(1, frame.KIND_MAX), numbers, numbers, st.integers(0, 2**32 - 1),
    st.one_of(st.binary(max_size=50), st.just(b"m" * META_BYTES_MAX)), payloads,
)  # fmt: skip


def packed(each: tuple[int, int, int, int, bytes, bytes]) -> bytes:
    kind, group, call, step, meta, payload = each
    return pack_header(kind, group, call, step, meta, len(payload)) + payload


@given(
    st.lists(frames, max_size=6),
    st.lists(st.one_of(st.integers(1, 64), st.integers(1, 100_000)), min_size=1, max_size=60),
    st.sampled_from([1, 100, 5000, 1 << 20]),
)
def test_any_split_gives_the_same_frames(sent, cuts, window_bytes) -> None:
    sink = Sink(window_bytes)
    reader = FrameReader(sink)
    feed(reader, b"".join(map(packed, sent)), cuts)
    assert sink.frames == sent
    assert reader.idle


@given(frames, st.data())
def test_every_split_in_two_gives_the_same_frame(sent, data) -> None:
    whole = packed(sent)
    cut = data.draw(st.integers(0, len(whole)))
    sink = Sink()
    reader = FrameReader(sink)
    feed(reader, whole[:cut], [len(whole)])
    assert reader.idle == (cut in (0, len(whole)))
    feed(reader, whole[cut:], [len(whole)])
    assert sink.frames == [sent] and reader.idle


@pytest.mark.slow
@given(st.lists(frames, min_size=1, max_size=4), st.lists(st.integers(1, 70_000), min_size=1, max_size=30))
def test_windows_longer_than_what_is_missing_are_cut(sent, cuts) -> None:
    sink = Oversized()
    reader = FrameReader(sink)
    feed(reader, b"".join(map(packed, sent)), cuts)
    assert [each[:5] for each in sink.frames] == [each[:5] for each in sent]
    assert reader.idle


@given(st.binary(max_size=2000), st.lists(st.integers(1, 2000), min_size=1, max_size=10))
def test_noise_is_refused_or_awaited_and_never_kept(noise, cuts) -> None:
    sink = Sink()
    reader = FrameReader(sink)
    try:
        feed(reader, noise, cuts)
    except WireError as error:
        assert len(str(error)) < 500
        assert len(noise) >= HEADER_BYTES
    else:
        assert len(noise) < HEADER_BYTES or noise.startswith(MAGIC)
    if not noise.startswith(MAGIC):
        assert sink.frames == []


@given(frames, st.integers(0, HEADER_BYTES - 1), st.integers(1, 255))
def test_a_changed_byte_of_a_header_is_refused(sent, position, change) -> None:
    whole = bytearray(packed((*sent[:4], b"", b"")))
    whole[position] ^= change
    sink = Sink()
    with pytest.raises(WireError, match="not a frame|changed header"):
        feed(FrameReader(sink), bytes(whole), [7])
    assert sink.frames == []


@given(frames, st.data())
def test_a_changed_byte_of_a_description_is_refused(sent, data) -> None:
    sent = (*sent[:4], sent[4] or b"m", sent[5])
    whole = bytearray(packed(sent))
    whole[HEADER_BYTES + data.draw(st.integers(0, len(sent[4]) - 1))] ^= data.draw(st.integers(1, 255))
    sink = Sink()
    with pytest.raises(WireError, match="changed description"):
        feed(FrameReader(sink), bytes(whole), [len(whole)])
    assert sink.frames == []


@pytest.mark.parametrize("length", [2**63, 2**64 - 1, 2**48 + 1, 1 << 20])
@pytest.mark.parametrize("meta_bytes", [0, 5])
def test_lengths_over_the_bound_are_refused_before_memory_is_reserved(length: int, meta_bytes: int) -> None:
    sink = Sink()
    reader = FrameReader(sink, payload_bytes_max=(1 << 20) - 1 if length == 1 << 20 else frame.PAYLOAD_BYTES_MAX)
    tracemalloc.start()
    try:
        with pytest.raises(WireError, match=f"payload of {length} bytes"):
            feed(reader, pack_header(frame.DATA, 1, 2, 3, bytes(meta_bytes), length), [HEADER_BYTES])
        assert tracemalloc.get_traced_memory()[1] < 100_000
    finally:
        tracemalloc.stop()
    assert sink.frames == []


def head_of_meta(meta_bytes: int) -> bytes:
    """A header that announces a description of that length."""
    head = HEADER.pack(MAGIC, VERSION, frame.DATA, 1, 2, 3, meta_bytes, 0, 0)
    return head[:-4] + (crc32(head[:-4]) & 0xFFFF).to_bytes(4, "little")


@pytest.mark.parametrize("meta_bytes", [META_BYTES_MAX + 1, 2**31, 2**32 - 1])
def test_meta_over_the_bound_is_refused(meta_bytes: int) -> None:
    reader = FrameReader(Sink())
    with pytest.raises(WireError, match=f"meta of {meta_bytes} bytes"):
        feed(reader, head_of_meta(meta_bytes), [HEADER_BYTES])


def test_a_bound_of_the_caller_cannot_pass_what_the_reader_holds() -> None:
    reader = FrameReader(Sink(), meta_bytes_max=1 << 30)
    with pytest.raises(WireError, match="meta of"):
        feed(reader, head_of_meta(META_BYTES_MAX + 1), [HEADER_BYTES])


@pytest.mark.parametrize(
    ("magic", "version", "kind"),
    [(b"aD", VERSION, 1), (b"GE", 0x54, 0x20), (MAGIC, VERSION + 1, 1), (MAGIC, VERSION, 0), (MAGIC, VERSION, 255)],
)
def test_what_is_no_frame_is_shown(magic: bytes, version: int, kind: int) -> None:
    reader = FrameReader(Sink())
    head = HEADER.pack(magic, version, kind, 0, 0, 0, 0, 0, 0)
    with pytest.raises(WireError, match="not a frame"):
        feed(reader, head, [HEADER_BYTES])


def test_a_payload_without_a_place_is_refused() -> None:
    class Nowhere(Sink):
        def arriving(self, *header) -> None:
            return None

    reader = FrameReader(Nowhere())
    feed(reader, pack_header(frame.BYE, 0, 0, 0, b"", 0), [HEADER_BYTES])
    with pytest.raises(WireError, match="kind 11 carries a payload of 3 bytes"):
        feed(reader, pack_header(frame.BYE, 0, 0, 0, b"", 3), [HEADER_BYTES])


def test_sixty_four_bit_lengths_are_counted_without_payload() -> None:
    """The header carries what no test can send: lengths around 2**31 and 2**32 come out as they went in."""
    seen: list[int] = []

    class Counting(Sink):
        def arriving(self, kind, group, call, step, meta, length):
            seen.append(length)
            return super().arriving(kind, group, call, step, meta, 1)

    for length in (2**31 - 1, 2**31, 2**32 + 5, 2**40):
        feed(FrameReader(Counting()), pack_header(frame.DATA, 1, 2, 3, b"", length), [HEADER_BYTES])
    assert seen == [2**31 - 1, 2**31, 2**32 + 5, 2**40]


def test_long_payloads_go_straight_to_their_landing() -> None:
    sink = Sink()
    reader = FrameReader(sink)
    feed(reader, pack_header(frame.DATA, 1, 2, 3, b"", 1 << 20), [HEADER_BYTES])
    assert len(reader.buffer()) == 1 << 20
    payload = bytes(range(256)) * 4096
    feed(reader, payload, [100_000])
    assert sink.frames[0][5] == payload


def test_reprs_say_what_is_missing() -> None:
    reader = FrameReader(Sink())
    feed(reader, pack_header(frame.DATA, 1, 2, 3, b"", 10) + b"abc", [1000])
    assert "7 of a payload missing" in repr(reader)


@pytest.mark.parametrize(
    ("cut", "says"),
    [(1, "1 of 40 bytes of its header"), (39, "39 of 40 bytes of its header"), (40, "0 of 5 bytes of its description"),
     (43, "3 of 5 bytes of its description"), (45, "0 of 10 bytes of its payload"),
     (54, "9 of 10 bytes of its payload")],
)  # fmt: skip
def test_the_reader_says_where_it_stands_in_a_frame(cut: int, says: str) -> None:
    reader = FrameReader(Sink())
    feed(reader, (pack_header(frame.DATA, 1, 2, 3, b"words", 10) + bytes(10))[:cut], [1000])
    assert not reader.idle and reader.position.startswith(says)
