"""Every test of links runs on asyncio's own loop and on uvloop, which watch descriptors differently; and a `heap`."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Callable, Iterator, Mapping

import pytest

from aiocoll.transport.shm.heap import Heap

from .heaps import MIB, mappings

try:
    from uvloop import new_event_loop as new_uvloop
except ImportError:
    FACTORIES = {"asyncio": asyncio.SelectorEventLoop}
else:
    FACTORIES = {"asyncio": asyncio.SelectorEventLoop, "uvloop": new_uvloop}
    with asyncio.Runner(loop_factory=new_uvloop) as _first:
        _first.get_loop()  # the first uvloop of a process opens descriptors that stay


@pytest.hookimpl(optionalhook=True)  # pytest-asyncio has it since 1.4
def pytest_asyncio_loop_factories() -> Mapping[str, Callable[[], asyncio.AbstractEventLoop]]:
    return FACTORIES


@pytest.fixture
def heap() -> Iterator[Heap]:
    before = mappings()
    heap = Heap(256 * MIB)
    yield heap
    heap.close()
    gc.collect()
    assert mappings() == before, "arrays are gone, so their memory should be"
