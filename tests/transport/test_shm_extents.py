"""Free pieces against a model that knows every byte."""

from __future__ import annotations

import random

import pytest

from aiocoll.transport.shm.extents import Extents

BYTES = 48


def pieces_of(free: set[int]) -> list[tuple[int, int]]:
    pieces: list[tuple[int, int]] = []
    for byte in sorted(free):
        if pieces and sum(pieces[-1]) == byte:
            pieces[-1] = (pieces[-1][0], pieces[-1][1] + 1)
        else:
            pieces.append((byte, 1))
    return pieces


@pytest.mark.parametrize("seed", range(40))
def test_what_is_free_is_what_was_given_and_not_taken(seed: int) -> None:
    chance = random.Random(seed)
    extents, free, held = Extents(), set[int](), [(0, BYTES)]
    for _ in range(300):
        if held and chance.random() < 0.5:
            offset, nbytes = held.pop(chance.randrange(len(held)))
            extents.give(offset, nbytes)
            free |= set(range(offset, offset + nbytes))
        else:
            nbytes = chance.randint(1, BYTES // 2)
            fitting = [(size, begin) for begin, size in pieces_of(free) if size >= nbytes]
            offset = extents.take(nbytes)
            assert offset == (min(fitting)[1] if fitting else None), "best fit, the lowest of equals"
            if offset is not None:
                free -= set(range(offset, offset + nbytes))
                held.append((offset, nbytes))
        pieces = pieces_of(free)
        assert list(extents) == pieces
        assert extents.nbytes == len(free)
        assert extents.largest()[1] == max((size for _, size in pieces), default=0)
        for byte in range(BYTES + 1):
            assert extents.before(byte) == next((size for begin, size in pieces if begin + size == byte), 0)


def test_a_range_is_cut_out_of_the_middle() -> None:
    extents = Extents()
    extents.give(100, 50)
    extents.cut(110, 20, 100)
    assert list(extents) == [(100, 10), (130, 20)]
    extents.give(110, 20)
    assert list(extents) == [(100, 50)]
    assert "50 bytes in 1 pieces" in repr(extents)
