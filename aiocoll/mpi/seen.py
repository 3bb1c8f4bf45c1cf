"""What messages and probes of a communicator share: those that a probe has seen, and how one lands.

The rule: a message that was taken out of the group for a probe is never lost; it lies in ``Seen`` until it is received.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any

import numpy as np

from ..errors import AiocollError
from ..group import Message
from .calling import Plan
from .constants import ANY_SOURCE, ANY_TAG
from .exceptions import translated
from .requests import Arrival
from .specs import Region

if TYPE_CHECKING:
    from ..group import Group


class Seen:
    """Messages that probes have seen and no receive has taken yet, in order."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._messages: list[tuple[bool, Message]] = []

    def add(self, found: list[tuple[bool, Message]]) -> None:
        """(is it an array, the message), in the order in which they came."""
        with self._lock:
            self._messages += found

    def take(self, source: int, tag: int, array: bool | None, *, keep: bool = False) -> tuple[bool, Message] | None:
        """The oldest that fits; ``array``: only arrays, only objects, or None for either; ``keep``: leave it here."""
        if not self._messages:
            return None
        with self._lock:
            for each in self._messages:
                is_array, message = each
                if (
                    source in (ANY_SOURCE, message.source)
                    and tag in (ANY_TAG, message.tag)
                    and array in (None, is_array)
                ):
                    if not keep:  # by identity: arrays have no answer to whether they are equal
                        self._messages = [other for other in self._messages if other is not each]
                    return each
        return None

    def __repr__(self) -> str:
        return f"Seen({len(self._messages)})"


def exchange(sending: Plan, receiving: Plan) -> Plan:
    """Both at once: the receive is there before the send begins."""

    async def both(group: Group) -> Any:
        coming = asyncio.ensure_future(receiving(group))
        try:
            await sending(group)
            return await coming
        except BaseException:
            coming.cancel()
            await asyncio.wait({coming})
            raise

    return both


def arrived(source: int | None, tag: int | None, wait: bool) -> Plan:
    """Takes the messages that are there, at most one buffer and one object; if ``wait``, at least one of the two."""

    async def taken(group: Group) -> list[tuple[bool, Message]]:
        receives: list[Callable[..., Awaitable[Message]]] = [group.recv_message, group.recv_object_message]
        tasks = [asyncio.ensure_future(receive(source, tag)) for receive in receives]
        try:
            if wait:
                await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            else:
                for _ in range(3):  # a receive looks once for what has come, and the loop once for what may
                    await asyncio.sleep(0)
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.wait(tasks)
        found, failed = [], None
        for is_array, task in zip((True, False), tasks, strict=True):
            if task.cancelled():
                continue
            error = task.exception()
            if error is None:
                found.append((is_array, task.result()))
            elif isinstance(error, AiocollError):
                failed = failed or error
        if failed is not None and not found:
            raise translated(failed) from failed.__cause__
        return found

    return taken


def bytes_of(message: Message) -> int:
    return int(np.asarray(message.data).nbytes) if isinstance(message.data, np.ndarray | np.generic) else 0


def as_object(message: Message) -> Arrival:
    return Arrival(message.data, message.source, message.tag, bytes_of(message))


def landed(message: Message, region: Region) -> Arrival:
    return Arrival(None, message.source, message.tag, region.take(message.data))
