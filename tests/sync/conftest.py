"""A driver of its own for each test that looks into one."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from aiocoll.sync.drivers import Driver


@pytest.fixture
def driver() -> Iterator[Driver]:
    driver = Driver("w")
    yield driver
    driver.close()
