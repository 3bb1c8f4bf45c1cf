"""Every test of links runs on asyncio's own loop and on uvloop, which watch descriptors differently."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping

import pytest

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
