"""Group: the members, their subgroups, and the end.

The rule: a subgroup costs no connection and no message: it is a name for some members that all of them compute alike.
"""

from __future__ import annotations

import asyncio
import os
import warnings
from collections.abc import Awaitable, Callable, Sequence
from types import TracebackType
from typing import Any, Final, NoReturn, Self, cast, overload

import numpy as np
from numpy.typing import NDArray

from ..algorithms.share import share
from ..config import Settings
from ..endpoint import Channel, Endpoint, Scope
from ..endpoint.news import bare
from ..errors import AiocollError, UsageError
from ..wire.codec import pack_control, unpack_control
from .bundles import Bundles
from .calls import identifier
from .growing import Admission, Growing
from .messages import Messages
from .ownership import Connection, in_loop
from .posted import Posted, when_awaited
from .ready import Forks
from .recovery import Recoveries
from .reductions import Reductions
from .typed import Dtype

_LEAVING_SECONDS: Final = 5.0


class Group(Reductions, Messages, Recoveries, Growing, Bundles):
    """Ranks that compute together; an async context manager that closes it.

    ``rank`` (mine) and ``size``; ``name``; ``ranks`` (world ranks in the group's order); ``local_rank``,
    ``local_size`` (among the members on my host); ``hosts`` (each rank's host); ``timeout`` (seconds, default of every
    call); ``broken`` (None, or the error that broke it); ``new_ranks`` (whom ``grow`` admitted, by rank here).
    Made by ``aiocoll.connect``, ``split``, ``subgroup``, ``dup``, ``shrink`` and ``grow``.

    What holds for every collective: all members call it, and ``timeout`` (seconds, ``math.inf`` for none) and ``name``
    (matched by it instead of by order) are each call's. An array is anything with memory that NumPy can read, of any
    layout and fixed-size dtype; a number counts as one, and comes back as a NumPy scalar. Inputs are never changed,
    results are new, writeable and in native byte order unless ``out`` is given. Awaiting the call raises, on all
    members, UsageError or SerializationError where one refuses its arguments (the group goes on), MismatchError where
    their calls differ, PeerLostError, CollectiveTimeoutError, and GroupBrokenError after any of the last three; from
    then on nothing is written to ``out``, whose content is undefined. A member that waits for nobody in a call (root of
    a broadcast, the first rank of a scan) may have returned by then, and hears it in a later one. Cancelling breaks the
    group.
    """

    rank: int
    size: int
    ranks: tuple[int, ...]
    new_ranks: tuple[int, ...]
    local_rank: int
    local_size: int

    def __init__(
        self,
        endpoint: Endpoint,
        scope: Scope,
        settings: Settings,
        *,
        timeout: float,
        connection: Connection | None = None,
        owner: bool = False,
        new_ranks: tuple[int, ...] = (),
        subgroups: dict[Any, int] | None = None,
    ) -> None:
        """``owner``: the group keeps ``connection`` open until it is closed."""
        self._endpoint, self._scope, self._settings = endpoint, scope, settings
        self._connection, self._owner, self._followed, self._pid = connection, False, False, os.getpid()
        self._counts, self._plans, self._kinds, self._talks = {}, {}, {}, []
        self._forks, self._bundle = Forks.count, None
        self._subgroups: dict[Any, int] = {} if subgroups is None else subgroups
        self._root = 0
        self.timeout = timeout
        self.name: str = scope.label
        self.rank, self.size = scope.rank, scope.size
        members = [endpoint.members[world] for world in scope.ranks]
        self.ranks, self.new_ranks = tuple(member.number for member in members), new_ranks
        self.hosts: tuple[str, ...] = tuple(member.host for member in members)
        self._islands = len({member.island for member in members})
        self._shared = all(member.memory for member in members)
        here = members[self.rank].machine
        local = [rank for rank, member in enumerate(members) if member.machine == here]
        self.local_rank, self.local_size = local.index(self.rank), len(local)
        if owner:
            self._own()

    def __reduce__(self) -> NoReturn:
        """A copy would end the world when it goes."""
        raise TypeError(f"{self!r} is neither copied nor pickled: it is this process's; dup() makes a twin of a group")

    def __repr__(self) -> str:
        state = "closed" if self._scope.closed else "broken" if self.broken else "open"
        return f"<Group {self.name!r} rank {self.rank} of {self.size}, {state}>"

    @property
    def broken(self) -> BaseException | None:
        """None, or the error that broke this group."""
        return self._scope.broken

    @property
    def closed(self) -> bool:
        """Whether this rank has closed it, or its connection."""
        return self._scope.closed or self._endpoint.closed

    # -- subgroups

    def split(
        self, color: Any, key: Any = None, *, timeout: float | None = None, name: str | None = None
    ) -> Posted[Group | None]:
        """One new group per ``color``, its ranks ordered by ``key`` (default: rank here), then by rank; None for the
        ranks whose color is None. Collective; ``color`` and ``key`` are int or str, keys of one color all of one kind,
        else UsageError."""
        turn = self._turn("split", name)

        def prepare() -> tuple[str, Callable[[Channel], Awaitable[Any]]]:
            for what, value in (("color", color), ("key", key)):
                if not (value is None or isinstance(value, (int, str)) or hasattr(value, "__index__")):
                    raise UsageError(f"split on rank {self.rank}: {what}={value!r} must be an int, a str or None")
            mine = [_plain(color), self.rank if key is None else _plain(key)]
            blob = pack_control({"split": mine})

            async def body(ch: Channel) -> Any:
                return [unpack_control(each)["split"] for each in await share(ch, blob)]

            return "split", body

        def then(answers: list[list[Any]]) -> Group | None:
            mine = answers[self.rank][0]
            if mine is None:
                return None
            same = [(answer[1], rank) for rank, answer in enumerate(answers) if answer[0] == mine]
            keys = {type(key) for key, _ in same}
            if len(keys) > 1:
                raise UsageError(f"split on rank {self.rank}: keys of one color must be all int or all str")
            members = tuple(self._scope.ranks[rank] for _, rank in sorted(same))
            id = identifier("split", self._scope.id, turn.number, mine)
            return self._open(id, members, f"{self.name}/{mine}")

        return self._made(turn, timeout, prepare, then)

    def dup(self, *, timeout: float | None = None, name: str | None = None) -> Posted[Group]:
        """A twin: the same members with calls and messages of its own. Collective."""
        turn = self._turn("dup", name)

        def then(_: Any) -> Group:
            return self._open(identifier("dup", self._scope.id, turn.number), self._scope.ranks, f"{self.name}'")

        return self._made(turn, timeout, lambda: ("dup", self._barrier().run), then)

    @when_awaited
    def subgroup(self, ranks: Sequence[int], name: str | None = None) -> Posted[Group]:
        """A group of some members, in the order given; only they call it. Nothing is sent: the n-th such call of one
        member (same members, same order, same name) meets the n-th of the others."""
        self._usable("subgroup")
        if not (name is None or isinstance(name, str)):
            raise UsageError(f"subgroup on rank {self.rank}: name={name!r} must be a str or None")
        members = self._ranks_of(ranks, "subgroup")
        if self._endpoint.rank not in members:
            raise UsageError(
                f"subgroup on rank {self.rank}: ranks={list(ranks)!r} does not hold this rank; only members call"
            )
        key = (self._root, members, name)
        count = self._subgroups.get(key, 0)
        self._subgroups[key] = count + 1
        group = self._open(identifier("subgroup", *key, count), members, name or f"{self.name}{list(members)}")

        async def made() -> Group:
            return group

        return Posted(made(), lambda _: group._abandon(), "subgroup")

    def _open(self, id: int, members: tuple[int, ...], label: str, *, owner: bool = False) -> Group:
        """A group on this one's connection, of ``members`` as the endpoint numbers them; as ``owner`` it keeps the
        connection open."""
        scope = self._endpoint.enter(id, members, label)
        group = Group(
            self._endpoint, scope, self._settings, timeout=self.timeout, connection=self._connection, owner=owner,
            subgroups=self._subgroups,
        )  # fmt: skip
        group._root = self._root
        return group

    def _opened_by_shrink(self, id: int, members: tuple[int, ...], name: str) -> Group:
        group = self._open(id, members, name, owner=True)
        group._root = id  # members may have made different subgroups of the old one: they begin to count anew
        return self._followed_by(group)

    def _admission(self) -> Admission | None:
        return None if self._connection is None else self._connection.lineage.admission

    def _own(self) -> None:
        """From now on this group keeps its connection open."""
        if self._connection is not None and not self._owner:
            self._owner = True
            self._connection.own(self)

    def _followed_by(self, group: Group) -> Group:
        """``group`` takes this one's place: whoever drops this one now has forgotten nothing."""
        self._followed = True
        broken = self._scope.broken
        if broken is not None:  # the endpoint keeps it, and its frames would keep this group
            self._scope.broken = cast(AiocollError, bare(broken))
        if self._connection is not None and self._connection.lineage.kept is self:
            self._connection.lineage.kept = group
        return group

    # -- memory and numbers

    @overload
    def empty(self, shape: int | Sequence[int]) -> NDArray[np.float64]: ...
    @overload
    def empty(self, shape: int | Sequence[int], dtype: type[Dtype] | np.dtype[Dtype]) -> NDArray[Dtype]: ...
    @overload
    def empty(self, shape: int | Sequence[int], dtype: Any = np.float64) -> NDArray[Any]: ...

    def empty(self, shape: int | Sequence[int], dtype: Any = np.float64) -> NDArray[Any]:
        """An array in memory that the ranks of this host share, not initialised: what lies there they read in place."""
        memory = self._endpoint.memory
        return np.empty(shape, dtype) if memory is None else memory.heap.empty(shape, dtype)

    @overload
    def zeros(self, shape: int | Sequence[int]) -> NDArray[np.float64]: ...
    @overload
    def zeros(self, shape: int | Sequence[int], dtype: type[Dtype] | np.dtype[Dtype]) -> NDArray[Dtype]: ...
    @overload
    def zeros(self, shape: int | Sequence[int], dtype: Any = np.float64) -> NDArray[Any]: ...

    def zeros(self, shape: int | Sequence[int], dtype: Any = np.float64) -> NDArray[Any]:
        """``empty``, filled with zeros."""
        memory = self._endpoint.memory
        return np.zeros(shape, dtype) if memory is None else memory.heap.zeros(shape, dtype)

    def statistics(self) -> dict[str, Any]:
        """Calls by collective on this group; bytes by transport, seconds waited, unreceived bytes and links of the
        whole connection; descriptors of the process."""
        try:
            descriptors = len(os.listdir("/proc/self/fd")) - 1
        except OSError:
            descriptors = -1
        calls = dict(self._counts)
        for ready in self._kinds.values():
            calls[ready.collective] = calls.get(ready.collective, 0) + ready.made
        return {"calls": calls, **self._endpoint.statistics(), "descriptors": descriptors}

    # -- the end

    async def close(self) -> None:
        """Lets pending sends leave (bounded), ends pending receives with GroupBrokenError; again: nothing.

        With the last of the groups that ``connect``, ``shrink`` and ``grow`` gave on one connection the connection is
        closed, and with it every group made from them.
        """
        scope = self._scope
        if scope.closed or os.getpid() != self._pid:
            return
        await self._let_sends_leave()
        for talk in self._talks:
            talk._abandon()
        if not (self._owner and self._connection is not None and self._connection.ends):  # else BYE says it
            self._endpoint.failure.says_closed(scope)
        self._endpoint.failure.close_scope(scope)
        self._endpoint.leave(scope)
        if self._carrier is not None:
            self._carrier.left(scope)
        if self._owner and self._connection is not None:
            self._owner = False
            await self._connection.release()

    async def _let_sends_leave(self) -> None:
        loop = self._endpoint.loop
        until = loop.time() + _LEAVING_SECONDS
        while any(not send.done for send in self._scope.mailbox.sends) and loop.time() < until:  # noqa: ASYNC110  sends have no event
            await asyncio.sleep(0.001)

    def _abandon(self) -> None:
        """Nobody wants this group after all."""
        if not self._scope.closed and not self._endpoint.closed:
            self._endpoint.failure.close_scope(self._scope)
            self._endpoint.leave(self._scope)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is not None:
            self._endpoint.failure.program_failed(self._scope, error, everything=self._owner)
        await self.close()

    def __del__(self) -> None:
        scope = getattr(self, "_scope", None)
        if scope is None or scope.closed or self._endpoint.closed or os.getpid() != self._pid:
            return
        if not self._followed:
            text = f"{self!r} was never closed; use 'async with' or close()"
            warnings.warn(text, ResourceWarning, stacklevel=2, source=self)
        if self._owner and self._connection is not None:
            self._connection.dropped(followed=self._followed)
        endpoint = self._endpoint

        def abandon() -> None:
            if not scope.closed and not endpoint.closed:
                endpoint.failure.close_scope(scope)
                endpoint.leave(scope)

        in_loop(endpoint.loop, abandon)


def _plain(value: Any) -> Any:
    return int(value) if hasattr(value, "__index__") else value
