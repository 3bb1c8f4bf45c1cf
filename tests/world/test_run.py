"""run(main) and connect() as a program begins: what is refused, and what is loaded when."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import numpy as np
import pytest

import aiocoll
from aiocoll.errors import UsageError


async def main(group: aiocoll.Group) -> int:
    return group.size


def plain(group: aiocoll.Group) -> int:
    return group.size


def test_a_world_of_one_and_what_main_returned() -> None:
    assert aiocoll.run(main, uvloop=False) == 1  # uvloop keeps a pipe for signals as long as the process lives


def test_main_that_was_called_already_and_nothing_is_left_unawaited() -> None:
    given: Any = main(None)
    with pytest.raises(UsageError, match=r"write run\(main\), not run\(main\(\.\.\.\)\)"):
        aiocoll.run(given, uvloop=False)


def test_a_plain_function_is_told_of_the_blocking_group() -> None:
    given: Any = plain
    with pytest.raises(UsageError, match=r"'plain' must be an async function; .*aiocoll\.sync\.connect\(\)"):
        aiocoll.run(given, uvloop=False)


@pytest.mark.parametrize("wrong", ["x", "", 1, 0, b"no"])
def test_what_is_neither_true_nor_false_is_refused(wrong: Any) -> None:
    """Anything that is true in an ``if`` would have been leave to unpickle."""
    for name in ("allow_pickle", "join"):
        with pytest.raises(UsageError, match=f"connect: {name}={wrong!r} must be True or False"):
            aiocoll.connect(**{name: wrong})
    with pytest.raises(UsageError, match=f"run: uvloop={wrong!r} must be True or False"):
        aiocoll.run(main, uvloop=wrong)
    numpys: Any = np.False_
    assert aiocoll.run(main, uvloop=numpys, allow_pickle=numpys, join=numpys) == 1


@pytest.mark.parametrize("given", [3, None, "main"])
def test_what_is_no_function(given: Any) -> None:
    with pytest.raises(UsageError, match="takes an async function of a group, not"):
        aiocoll.run(given, uvloop=False)


def test_the_first_connect_loads_nothing_large_while_its_loop_waits() -> None:
    program = """
import asyncio, sys
from aiocoll import connect
async def main():
    before = set(sys.modules)
    async with connect(rank=0, size=1) as group:
        assert await group.all_reduce(7) == 7
    print(*sorted(set(sys.modules) - before))
asyncio.run(main())
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=True)
    assert not [name for name in done.stdout.split() if name.startswith(("aiocoll.algorithms", "importlib.", "numpy"))]
