"""Settings of shared memory: read once, rounded where they must be, refused with the bound that they miss."""

from __future__ import annotations

import pytest

from aiocoll import UsageError
from aiocoll.config import Settings


def test_defaults_and_what_the_environment_says() -> None:
    default, read = Settings(), Settings.from_env({})
    for name in ("shm_cell_bytes", "shm_cells", "shm_slots", "shm_seconds", "shm_cma"):
        assert getattr(read, name) == getattr(default, name)
    told = Settings.from_env(
        {
            "AIOCOLL_SHM_CELL_BYTES": "5000",
            "AIOCOLL_SHM_CELLS": "7",
            "AIOCOLL_SHM_SLOTS": " 9 ",
            "AIOCOLL_SHM_SECONDS": "0.5",
            "AIOCOLL_SHM_CMA": "0",
        }
    )
    assert (told.shm_cell_bytes, told.shm_cells, told.shm_slots, told.shm_seconds) == (8192, 7, 9, 0.5)
    assert default.shm_cma and not told.shm_cma


@pytest.mark.parametrize(
    ("name", "text", "bound"),
    [
        ("CELL_BYTES", "4095", "at least 4096"),
        ("CELL_BYTES", "1e15", "at most 1e\\+09"),
        ("CELLS", "3", "at least 4"),
        ("SLOTS", "1", "at least 2"),
        ("SLOTS", "nan", "at least 2"),
        ("CELLS", "inf", "at most"),
        ("SECONDS", "0", "at least"),
        ("SECONDS", "soon", "at least"),
    ],
)
def test_what_is_out_of_bounds_is_refused_with_the_bound(name: str, text: str, bound: str) -> None:
    with pytest.raises(UsageError, match=f"AIOCOLL_SHM_{name}='{text}': a number of {bound}"):
        Settings.from_env({f"AIOCOLL_SHM_{name}": text})
