"""Rope: the pieces between any two places are the bytes between them, and only crumbs are copied."""

from __future__ import annotations

import numpy as np
import pytest

from aiocoll.wire.rope import Rope, pieces_of

LENGTHS = (3, 70_000, 0, 1, 5, 64 << 10, 100_000, 7)


def parts() -> list[bytes | memoryview]:
    generator = np.random.default_rng(4)
    return [memoryview(generator.bytes(length)) if length > 10 else generator.bytes(length) for length in LENGTHS]


@pytest.mark.parametrize("start", [0, 2, 3, 4, 70_002, 70_003, 70_009, 135_545, sum(LENGTHS) - 8, sum(LENGTHS)])
@pytest.mark.parametrize("nbytes", [0, 1, 9, 66_000, 300_000])
def test_any_part_of_it(start: int, nbytes: int) -> None:
    given = parts()
    whole, rope = b"".join(given), Rope(given)
    found = list(rope.pieces(start, start + nbytes))
    assert b"".join(found) == whole[start : start + nbytes] == rope[start : start + nbytes] and all(map(len, found))


def test_all_of_it() -> None:
    given = parts()
    rope = Rope(given)
    assert len(rope) == rope.nbytes == sum(LENGTHS) and bytes(rope) == b"".join(given)
    pieces = list(pieces_of(rope))
    assert [len(piece) for piece in pieces] == [3, 70_000, 6, 64 << 10, 100_000, 7]
    large = [piece for piece in pieces if len(piece) > 10]
    assert [piece.obj for piece in large] == [part.obj for part in given if isinstance(part, memoryview)]
    assert repr(rope) == f"<Rope of {sum(LENGTHS)} bytes in 6 pieces>"
    assert bytes(Rope([])) == b"" and list(Rope([]).pieces()) == [] and list(pieces_of(memoryview(b"ab"))) == [b"ab"]
