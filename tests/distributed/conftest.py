"""`joined(rank, size)`: the documented API in process-group mode over a group of which only this rank exists."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

import aiocoll.distributed as dist
from aiocoll.distributed.state import STATE
from aiocoll.sync import SyncGroup
from aiocoll.sync.drivers import Driver
from tests.distributed.fake_group import FakeGroup


@pytest.fixture
def joined() -> Iterator[Callable[..., FakeGroup]]:
    def join(rank: int = 1, size: int = 3) -> FakeGroup:
        fake = FakeGroup(rank, size)
        STATE.join(SyncGroup(fake, Driver("world")), "tcp")
        return fake

    yield join
    if STATE.world is not None:
        STATE.leave()


@pytest.fixture
def left_behind() -> Iterator[None]:
    """Leaves what the test has joined."""
    yield
    if dist.is_initialized():
        dist.destroy_process_group()
