"""Waiting for what no event tells of: a look at every turn of the loop.

The rule: what never comes is a failure, after a time that only a hang takes.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable


async def until(condition: Callable[[], object], pause_seconds: float = 0.0, hang_seconds: float = 30.0) -> None:
    """Turns of the loop until ``condition()``; with a pause where other threads or processes see to it."""
    async with asyncio.timeout(hang_seconds):
        while not condition():  # noqa: ASYNC110  no event tells of it
            await asyncio.sleep(pause_seconds)
