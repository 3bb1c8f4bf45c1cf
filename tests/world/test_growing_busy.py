"""grow: a newcomer that is busy with one member, and whom another one asks."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any

import pytest

from aiocoll import Group
from aiocoll.rendezvous.lobby import Waiting
from aiocoll.store.users import me

from .jobs import Job, adds_up

ELSEWHERE: Mapping[str, Any] = {"host": "elsewhere", "pid": 7, "boot": "another", "namespace": 0, "started": "1"}


@pytest.mark.parametrize("lost", [True, False])
async def test_it_leaves_whoever_the_others_have_seen_die(lost: bool) -> None:
    """On another host nobody sees a process end; the members of its groups do."""
    job = Job()
    joining = asyncio.ensure_future(job.newcomer(adds_up))
    try:
        await job.line(1)
        (guest,) = await job.lobby.waiting()
        await job.lobby.tell(guest, {"t": "ask", "attempt": "first", "who": ELSEWHERE})
        answer = job.lobby.key(f"answer/{guest.nonce}")
        await job.store.get(answer, timeout=10.0)
        gone = [("elsewhere", 7)] if lost else [("elsewhere", 8)]
        found = await job.lobby.ask(guest, "second", 10.0 if lost else 0.6, gone)
        assert (found or {}).get("pid") == (me()["pid"] if lost else None)
    finally:
        joining.cancel()
        await asyncio.wait([joining])


async def test_one_that_refuses_connections_and_stands_in_no_line_is_given_up_at_once() -> None:
    """Not only when the attempt has taken all the time that it may take."""
    job = Job("tcp")

    async def fickle() -> None:
        line = Waiting(job.store, "world")
        await line.enlist()
        word = await line.word(20.0)
        assert word is not None and word["t"] == "ask"
        info = {"host": "elsewhere", "pid": 1, "boot": me()["boot"], "address": "127.0.0.1", "port": 1}
        await line.answer(word["attempt"], info)
        word = await line.word(20.0)
        assert word is not None and word["t"] == "meet"
        await line.leave()

    async def main(group: Group) -> tuple[int, ...]:
        loop = asyncio.get_running_loop()
        began = loop.time()
        twin = await group.grow()
        await adds_up(twin)
        assert loop.time() - began < 8.0  # 20 s it was
        return twin.new_ranks

    assert (await job.run(2, main, fickle()))[:2] == [(), ()]
