"""Meetings that are made together, and left together."""

from __future__ import annotations

import asyncio
from typing import Any

from aiocoll.rendezvous import Meeting


async def gather(*calls: Any) -> list[Meeting]:
    """All of them; a hang is a failure."""
    async with asyncio.timeout(30):
        return list(await asyncio.gather(*calls))


async def leave(meetings: list[Meeting]) -> None:
    for meeting in meetings:
        await meeting.leave()
