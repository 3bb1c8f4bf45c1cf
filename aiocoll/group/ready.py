"""Calls that come again and again with arguments alike: what they have in common is made by the first of them.

The rule: a ready call differs from any other in nothing but what it need not do again.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Coroutine
from typing import Any, Final

from ..endpoint import Channel, Scope
from ..endpoint.channel import Call
from ..transport.shm.stamp import Stamp

READY_MAX: Final = 256
"""Kinds of calls that one group keeps ready."""


class Forks:
    """How often this process has become another: what was made before belongs to its parent."""

    count: int = 0

    @classmethod
    def forked(cls) -> None:
        cls.count += 1


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=Forks.forked)


class Ready:
    """One kind of call: its description, its coroutine, and a channel that was used before."""

    __slots__ = ("collective", "description", "kept", "made", "meta", "number", "run", "scope", "spare", "stamps")
    scope: Scope
    collective: str
    description: str
    run: Callable[..., Coroutine[Any, Any, Any]]

    def __init__(
        self, scope: Scope, collective: str, description: str, run: Callable[..., Coroutine[Any, Any, Any]],
        meta: bytes,
    ) -> None:  # fmt: skip
        self.meta: bytes = meta
        """What describes the data, where it travels with them."""
        self.scope, self.collective, self.description, self.run = scope, collective, description, run
        self.spare: Channel | None = None
        self.kept: list[list[Any]] = []
        """Memory of arrays that calls before gave, and that their owners may have dropped."""
        self.stamps: dict[tuple[int, int], Stamp | None] = {}
        self.made: int = 0
        self.number: int = 0

    def __repr__(self) -> str:
        return f"<Ready {self.description}, {self.made} calls made>"

    @property
    def label(self) -> str:
        """The last one, in messages."""
        return f"{self.collective} (call {self.number})"

    def channel(self, timeout: float, result: Any = None) -> Channel:
        """That of the group's next call, which is made herewith, and gives ``result``."""
        scope = self.scope
        number = self.number = scope.next_call
        scope.next_call = number + 1
        scope.made = self
        self.made += 1
        channel = self.spare
        if channel is None:
            channel = Call(scope, number, self.collective, self.description, timeout, self.stamps).channel()
            channel.call.ready = self
        self.spare = None
        call = channel.call
        call.number, call.timeout, call.result = number, timeout, result
        return channel
