"""LineBuffer: no byte is lost and every piece is whole, however the bytes arrive."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from aiocoll.runner.lines import LineBuffer

text = st.lists(st.sampled_from([b"\n", b"\r", b"\r\n", b"a", b"\xff", b"bc"]), max_size=40).map(b"".join)


@given(text, st.lists(st.integers(0, 60), max_size=8))
def test_pieces_do_not_depend_on_how_the_bytes_are_split(data: bytes, cuts: list[int]) -> None:
    whole, split = LineBuffer(), LineBuffer()
    expected = whole.feed(data)
    rest = whole.flush()
    pieces: list[bytes] = []
    ends = [*sorted(cuts), len(data)]
    for start, end in zip([0, *ends], ends, strict=False):
        pieces += split.feed(data[start:end])
    assert (pieces, split.flush()) == (expected, rest)
    assert b"".join(expected) + rest == data


@given(text)
def test_every_piece_ends_at_its_only_line_end(data: bytes) -> None:
    for piece in LineBuffer().feed(data):
        body = piece.removesuffix(b"\n").removesuffix(b"\r")
        assert b"\n" not in body and b"\r" not in body
        assert piece != body


def test_a_carriage_return_waits_for_its_newline() -> None:
    lines = LineBuffer()
    assert lines.feed(b"10%\r") == []
    assert lines.feed(b"20%\r\n") == [b"10%\r", b"20%\r\n"]


def test_a_line_without_end_is_given_out_when_it_grows_too_long() -> None:
    lines = LineBuffer(bytes_max=10)
    assert lines.feed(b"x" * 8) == []
    assert lines.feed(b"y" * 8) == [b"x" * 8 + b"y" * 8]
    assert len(lines) == 0
