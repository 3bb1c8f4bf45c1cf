"""Call numbers, and the life of one collective call from the check of its arguments to its end.

The rule: the number is taken when the call is made, whatever becomes of the call.
"""

from __future__ import annotations

import asyncio
import hashlib
import math
import os
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from datetime import timedelta
from operator import index
from typing import TYPE_CHECKING, Any, Final, TypeVar

import numpy as np

from .. import observe
from ..algorithms import Algorithm
from ..config import Settings
from ..endpoint import Channel, Endpoint, Scope
from ..endpoint.channel import Call
from ..endpoint.news import consequence, renewed
from ..endpoint.scope import NAMED
from ..errors import AiocollError, NotInitializedError, SerializationError, UsageError
from ..observe.flight import ERROR, Entry, words
from ..ops import Op
from ..transport.shm.transport import CALLS_PER_TURN
from ..tuning import choose
from .carrier import Carrier
from .ownership import Connection
from .posted import Posted, PostedAgain, Turn, failing, settled
from .ready import READY_MAX, Forks, Ready

if TYPE_CHECKING:
    from .bundles import Bundle

_get_running_loop = asyncio._get_running_loop
T = TypeVar("T")
_PLANS_MAX: Final = 4096
Again = tuple[Channel, Coroutine[Any, Any, Any]]
"""A call that came again, made and not begun."""


def identifier(*parts: object) -> int:
    """64 bits that all ranks compute alike."""
    return int.from_bytes(hashlib.blake2b(repr(parts).encode(), digest_size=8).digest(), "little")


def true_or_false(value: Any, what: str, argument: str) -> bool:
    """A boolean argument, NumPy's included; what else is true in an ``if`` is most likely another argument's."""
    if isinstance(value, (bool, np.bool_)):
        return bool(value)
    raise UsageError(f"{what}: {argument}={value!r} must be True or False")


class Calls:
    """What all kinds of calls of a group share."""

    _scope: Scope
    _endpoint: Endpoint
    _connection: Connection | None
    _settings: Settings
    _pid: int
    _counts: dict[str, int]
    _plans: dict[Any, Any]
    _kinds: dict[Any, Ready]
    _forks: int
    _islands: int
    _shared: bool
    _bundle: Bundle | None
    """The call of which those that are made now are parts, if they are."""
    timeout: float
    name: str

    def _present(self, what: str) -> None:
        """Raises unless this group is this process's, open, and at home in the loop that runs."""
        scope = self._scope
        if os.getpid() != self._pid:
            raise UsageError(
                f"{what}: group {self.name!r} was made in process {self._pid} and this is its fork {os.getpid()}; "
                "connect again in the child"
            )
        if scope.closed or self._endpoint.closed:
            raise NotInitializedError(f"{what}: group {self.name!r} is closed on this rank ({scope.rank})")
        running = asyncio._get_running_loop()
        if running is not None and running is not self._endpoint.loop:
            raise UsageError(
                f"{what}: group {self.name!r} lives in another event loop; use it where it was connected, or "
                "aiocoll.sync from other threads"
            )

    def _usable(self, what: str, number: int = NAMED) -> None:
        """Raises unless a call (``number``, if it has one) may be made on this group, here and now."""
        self._present(what)
        scope = self._scope
        if scope.broken is not None and number >= scope.sound_until:
            if not scope.raised:
                scope.raised = True
                raise renewed(scope.broken, what)
            text = f"{what}: group {self.name!r} is broken on rank {scope.rank}: {scope.broken}"
            raise consequence(scope.broken, text)

    def _says(self, error: BaseException, collective: str, number: int = NAMED) -> None:
        """An error that leaves a call says which one it leaves, and who refused it."""
        if isinstance(error, AiocollError):
            error.at(self.name, collective, number if 0 <= number < NAMED else None)
            if error.rank is None and isinstance(error, (UsageError, SerializationError)):
                error.rank, error.world_rank = self._scope.mine().values()

    def _seconds(self, timeout: float | timedelta | None, what: str) -> float:
        if timeout is None:
            return self.timeout
        try:
            number = timeout.total_seconds() if isinstance(timeout, timedelta) else timeout
            seconds = math.nan if isinstance(number, bool | str | bytes) else float(number)  # float("3") is 3.0
        except (TypeError, ValueError, OverflowError):
            seconds = math.nan
        if not seconds >= 0:
            raise UsageError(f"{what} on rank {self._scope.rank}: timeout={timeout!r}, seconds from 0 up are needed")
        return seconds

    def _turn(self, collective: str, name: Any) -> Turn:
        """Takes the next number (or the next turn of ``name``)."""
        if self._bundle is not None:
            return self._bundle.turn
        try:
            self._usable(collective, self._scope.next_call if name is None else NAMED)
        except AiocollError as error:
            self._says(error, collective, self._scope.next_call if name is None else NAMED)  # which it does not take
            return Turn(collective, -1, collective, error)
        scope = self._scope
        self._counts[collective] = self._counts.get(collective, 0) + 1
        if name is None or not isinstance(name, str):
            number = count = scope.next_call
            scope.next_call = count + 1
            scope.made = turn = Turn(collective, number, f"{collective} (call {count})")
            if name is not None:
                turn.error = UsageError(f"{collective} on rank {scope.rank}: name={name!r} must be a str or None")
            return turn
        count = scope.named.get(name, 0)
        scope.named[name] = count + 1
        label = f"{collective} (call {count} named {name!r})"
        scope.made = turn = Turn(collective, NAMED | identifier("call", name, count), label)
        return turn

    def _made(
        self,
        turn: Turn,
        timeout: float | None,
        prepare: Callable[[], tuple[str, Callable[[Channel], Awaitable[T]]]],
        then: Callable[[T], Any] | None = None,
    ) -> Posted[Any]:
        """The coroutine of one call. ``prepare`` checks the arguments and gives (description, body); what it refuses
        is refused for all. ``then`` turns the body's result into the caller's once the call is over."""
        if self._bundle is not None:
            self._bundle.parts.append((*prepare(), then))
            return settled()
        if turn.error is not None:
            if turn.number >= 0 and isinstance(turn.error, UsageError):
                return self._refused(turn, turn.error)
            return failing(turn.error)
        try:
            seconds = self._seconds(timeout, turn.collective)
            description, body = prepare()
        except (UsageError, SerializationError) as error:
            return self._refused(turn, error)
        except Exception as error:  # an argument with a mind of its own: nobody shall wait for this rank
            text = f"{turn.collective} on rank {self._scope.rank}: {type(error).__name__}: {error}"
            refusal = UsageError(text)
            refusal.__cause__ = error
            return self._refused(turn, refusal)
        except BaseException:
            self._taken_back(turn, turn.collective, "cancelled")
            raise
        return Posted(
            self._carry(turn, seconds, description, body, then),
            lambda how: self._taken_back(turn, description, how),
            turn.collective,
        )

    def _refused(self, turn: Turn, error: UsageError | SerializationError) -> Posted[Any]:
        """This rank refuses a call: so do all, and awaiting it raises ``error``."""
        scope = self._scope
        self._says(error, turn.collective, turn.number)
        self._endpoint.failure.tell_refusal(scope, turn.number, error)
        self._forget(turn.number, turn.collective)
        return failing(error)

    def _forget(self, number: int, description: str) -> None:
        """A call is over before it began: what came for it, and what will, is dropped."""
        self._endpoint.inbox.forget_call_number(self._scope, number)
        self._scope.retire(number, description, failed=True)

    def refuse(self, collective: str, error: UsageError) -> Posted[Any]:
        """A call that the layer above refuses: it takes its number, the peers' call of that number is refused too, and
        awaiting it raises ``error``."""
        turn = self._turn(collective, None)

        def prepare() -> tuple[str, Callable[[Channel], Awaitable[Any]]]:
            raise error

        return self._made(turn, None, prepare)

    def _taken_back(self, turn: Turn, description: str, how: str) -> None:
        scope = self._scope
        if scope.broken is None and not scope.closed and not self._endpoint.closed and os.getpid() == self._pid:
            if scope.refused.pop(turn.number, None) is not None:  # a peer refused it: nobody waits for it
                self._forget(turn.number, description)
                return
            call = Call(scope, turn.number, turn.label, description, 0.0)
            self._endpoint.failure.cancelled(call, how)
            call.over()

    async def _carry(
        self,
        turn: Turn,
        seconds: float,
        description: str,
        body: Callable[[Channel], Awaitable[T]],
        then: Callable[[T], Any] | None,
    ) -> Any:
        """Runs one call, and gives what ``then`` makes of its result."""
        call = Call(self._scope, turn.number, turn.label, description, seconds)
        result = await self._live(call, body, call.channel())
        if then is None:
            return result
        try:
            return then(result)
        except AiocollError as error:
            self._says(error, turn.collective, turn.number)
            raise

    async def _live(self, call: Call, run: Callable[..., Awaitable[Any]], *arguments: Any) -> Any:
        """One call from its first step to its end; its channel is the first of the arguments."""
        scope, endpoint = self._scope, self._endpoint
        loop = _get_running_loop()
        if scope.troubled or Forks.count != self._forks or (loop is not None and loop is not endpoint.loop):
            self._may_begin(call)
        scope.calls[call.number] = call
        flight = endpoint.flight
        clock = flight.clock
        fact: Entry = [clock(), None, None, call.number, call.said]
        flight.record(fact)
        if observe.active:
            observe.emit("call", group=self.name, rank=scope.rank, call=call.label, description=call.description)
        try:
            result = await run(*arguments)
            if endpoint.inbox.arrived:
                endpoint.inbox.leftovers(call)
            if call.error is not None:  # the group broke while the last step was on its way to the algorithm
                raise call.error
        except (asyncio.CancelledError, GeneratorExit):
            fact[ERROR] = "cancelled"
            endpoint.failure.cancelled(call)
            raise
        except BaseException as error:
            fact[ERROR] = words(error)
            endpoint.failure.failed(call, error)
            if call.error is not None and call.error is not error:
                raise call.error  # noqa: B904  which has a cause of its own, if any; what came second is its context
            raise
        finally:
            call.over()
            fact[1] = clock()
            if observe.active:
                ended = repr(call.error) if call.error is not None else None
                observe.emit("called", group=self.name, rank=scope.rank, call=call.label, error=ended)
        memory = endpoint.memory
        if memory is not None and memory.shares_loop:
            memory.calls += 1
            if memory.calls >= CALLS_PER_TURN:  # a loop of calls that never wait would keep the loop for itself
                memory.calls = 0
                await asyncio.sleep(0)
        ready = call.ready
        if ready is None:
            return result
        given, call.result = call.result, None
        if call.reset():
            ready.spare = arguments[0]
        return result if given is None else given

    def _may_begin(self, call: Call) -> None:
        """Raises where a call that was made cannot begin."""
        try:
            self._usable(call.collective, call.number)
            refused = self._scope.refused.pop(call.number, None)
            if refused is not None:
                self._forget(call.number, call.description)
                raise refused
        except AiocollError as error:
            self._says(error, call.collective, call.number)
            raise
        scope = self._scope
        scope.troubled = bool(scope.refused) or scope.broken is not None  # a refusal troubles one call only

    @property
    def _carrier(self) -> Carrier | None:
        """The library that moves the arrays, where it is not aiocoll itself; a group of one needs nobody."""
        connection = self._connection
        return None if connection is None or self._scope.size == 1 else connection.lineage.carrier

    # -- calls that come again

    def _at_home(self) -> bool:
        """Whether no other loop than this group's is running, since a call that cannot be made takes no number; and
        whether the call is no part of another, which takes none either."""
        running = _get_running_loop()
        return (running is None or running is self._endpoint.loop) and self._bundle is None

    def _ready(self, key: Any) -> Ready | None:
        """What calls of this kind need, if there were such calls and nobody has to watch this one."""
        return None if observe.active else self._kinds.get(key)

    def _keep_ready(
        self, key: Any, collective: str, description: str, run: Callable[..., Coroutine[Any, Any, Any]],
        meta: bytes = b"",
    ) -> None:  # fmt: skip
        """Calls of this kind come again."""
        if self._carrier is not None:
            return  # what a library takes is looked at every time
        if key in self._kinds:  # and may have come already: a call with a timeout, say, is made at length all the same
            return
        if len(self._kinds) >= READY_MAX:
            for ready in self._kinds.values():
                self._counts[ready.collective] = self._counts.get(ready.collective, 0) + ready.made
            self._kinds.clear()
        self._kinds[key] = Ready(self._scope, collective, description, run, meta)

    def _posted_again(self, channel: Channel, running: Coroutine[Any, Any, T]) -> Posted[T]:
        """A ready call for those who may drop it."""
        return PostedAgain(running, self._taken_back, channel.call)

    def _chosen(
        self, collective: str, nbytes: int, *, count: int = 0, op: Op | None = None, named: str = "",
        narrow: bool = False, in_turn: bool = False,
    ) -> Algorithm:  # fmt: skip
        """The algorithm for one call, from facts that are equal on all ranks; ``named``: as what users override it."""
        carrier = self._carrier
        if carrier is not None:
            carried = carrier.algorithm(collective, self._scope)
            if carried is not None:
                return carried
        override = self._settings.algorithm
        if named in override:
            override = {**override, collective: override[named]}
        return choose(
            collective, nbytes=nbytes, size=self._scope.size, count=count, op=op, hosts=self._islands,
            shared=self._shared, narrow=narrow, in_turn=in_turn, override=override,
        )  # fmt: skip

    def _plan(self, key: Any, make: Callable[[], T]) -> T:
        """What ``make`` gives for ``key``, made once."""
        plan: T | None = self._plans.get(key)
        if plan is None:
            if len(self._plans) >= _PLANS_MAX:
                self._plans.clear()
            plan = self._plans[key] = make()
        return plan

    def _rank_of(self, rank: Any, what: str, argument: str) -> int:
        """A rank argument, checked."""
        size = self._scope.size
        try:
            value = -1 if isinstance(rank, bool) else index(rank)
        except TypeError:
            value = -1
        if not 0 <= value < size:
            raise UsageError(
                f"{what} on rank {self._scope.rank}: {argument}={rank!r} is no rank of group {self.name!r}; "
                f"ranks are 0 to {size - 1}"
            )
        return value

    def _ranks_of(self, ranks: Sequence[int], what: str) -> tuple[int, ...]:
        """Several different ranks, checked, as world ranks."""
        try:
            given = list(ranks)
        except TypeError:
            raise UsageError(f"{what} on rank {self._scope.rank}: ranks={ranks!r} is no sequence of ranks") from None
        if isinstance(ranks, (set, frozenset)):
            raise UsageError(f"{what} on rank {self._scope.rank}: ranks={ranks!r} has no order; pass a list")
        chosen = [self._rank_of(rank, what, "ranks") for rank in given]
        if not chosen or len(set(chosen)) != len(chosen):
            raise UsageError(f"{what} on rank {self._scope.rank}: ranks={given!r} must be different and at least one")
        return tuple(self._scope.ranks[rank] for rank in chosen)
