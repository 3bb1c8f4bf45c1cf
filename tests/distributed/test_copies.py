"""Groups are not copied or pickled, since the copy would end the world; the sentinel for all ranks is, by name."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import aiocoll
import aiocoll.distributed as dist
from aiocoll.sync import connect
from tests.distributed.ranks import ranks

WAYS: list[Callable[[Any], Any]] = [copy.copy, copy.deepcopy, pickle.dumps, lambda each: copy.deepcopy({"of": [each]})]


def refuses(group: Any) -> None:
    for way in WAYS:
        with pytest.raises(TypeError, match="neither copied nor pickled"):
            way(group)


@pytest.mark.filterwarnings("error")
def test_a_group_is_not_copied_and_lives_on() -> None:
    def program(rank: int) -> None:
        refuses(dist.new_group())
        mesh = dist.init_device_mesh("cpu", (2, 1), mesh_dim_names=("dp", "tp"))
        with pytest.raises(TypeError, match="neither copied nor pickled"):
            copy.deepcopy(mesh["tp"])
        for way in (copy.copy, copy.deepcopy, lambda each: pickle.loads(pickle.dumps(each))):
            assert way(dist.group.WORLD) is dist.group.WORLD
        x = np.array([rank + 1.0])
        dist.all_reduce(x)
        assert x[0] == 3

    ranks(2, program)


@pytest.mark.filterwarnings("error")
def test_nor_is_a_blocking_one_nor_an_async_one() -> None:
    with connect() as group:
        refuses(group)
        assert group.all_reduce(3) == 3

    async def main(group: aiocoll.Group) -> int:
        refuses(group)
        return int(await group.all_reduce(4))

    assert aiocoll.run(main, uvloop=False) == 4
