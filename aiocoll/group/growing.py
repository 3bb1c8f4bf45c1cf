"""grow: the members admit newcomers, who wait in the job's store, into a new and larger group.

Rank 0 asks those who wait whether they are still there, tells the members of its plan, and members and newcomers open
links and memory of their own. Then the members agree whether that has worked for all of them. If not, they try again
without those who failed, or go on as they were.

The rule: a newcomer's death never breaks the group that grows, and nobody returns a group that the others do not.
"""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import Awaitable, Callable, Coroutine
from operator import index
from typing import TYPE_CHECKING, Any, Final, Protocol, TypeVar, runtime_checkable

from ..endpoint import Channel
from ..endpoint.news import renewed
from ..endpoint.outcome import Wish
from ..errors import AiocollError, GroupBrokenError, MismatchError, RendezvousError, UsageError
from .calls import Calls, identifier
from .ownership import successor
from .posted import Posted, Turn

if TYPE_CHECKING:
    from .group import Group

T = TypeVar("T")
Plan = dict[str, Any]
"""What rank 0 decides: ``attempt``, ``world``, ``name``, ``numbers`` (of all ranks), and per newcomer ``guests``; or
``failed``, or ``refused`` (texts)."""
_log = logging.getLogger("aiocoll.group")
HERALDS_MAX: Final = 16
"""So many members tell each newcomer whether it is admitted: one is enough, but it may die."""
_MEETING_SECONDS: Final = 20.0
"""How long an attempt may take before somebody is taken to be missing."""
_SETTLING_SECONDS: Final = 2.0
"""How much longer than the deadline members settle what has failed until then."""


@runtime_checkable
class Opened(Protocol):
    """Links of a new endpoint, not yet anybody's."""

    def group(self, name: str, timeout: float, new_ranks: tuple[int, ...]) -> Group:
        """The group of all its ranks, which owns it."""

    def between(self, member: int, guest: int) -> Group:
        """A group of two that only a death of one of them breaks: what one tells the other about the admission."""

    async def prove(self, seconds: float) -> None:
        """Returns once every rank has come here: all links work."""

    async def discard(self) -> None:
        """Says goodbye and closes it."""


class Opening(Protocol):
    """An endpoint that others may reach and that has no links yet."""

    def info(self) -> dict[str, Any]:
        """What the others must know of this rank."""

    async def open(self, plan: Plan, infos: list[dict[str, Any]], rank: int) -> Opened:
        """Makes it: ``infos`` of all ranks, this one being ``rank``."""

    def close(self) -> None:
        """Nothing comes of it; idempotent."""


class Admission(Protocol):
    """How a group finds newcomers and opens endpoints: what connect() knows and a group does not."""

    async def invite(self, most: int | None, until: float, numbers: tuple[int, ...], seconds: float) -> Plan:
        """Rank 0: a plan for those who wait now, or have come ``until`` then (the loop's time), at most so many, and
        the members, whose ``numbers`` in the world these are; asking may take about so many ``seconds``. A store that
        is gone makes a failed plan, not an error."""

    async def summon(self, plan: Plan, infos: list[dict[str, Any]]) -> None:
        """Rank 0: the newcomers of the plan are to open their links to the members, who told ``infos``."""

    async def settled(self, plan: Plan, reasons: list[str]) -> None:
        """Rank 0: they are in, or not, for ``reasons``."""

    def opening(self) -> Opening:
        """A new endpoint of this rank."""


class Growing(Calls):
    """See API: grow."""

    _talks: list[Group]

    def grow(self, n: int | None = None, *, timeout: float | None = None, wait: float = 0.0) -> Posted[Group]:
        """The larger group: the members in their order, then newcomers that wait (``connect(join=True)``, or
        AIOCOLL_JOIN=1), at most ``n``; ``new_ranks`` says who is new. Collective, equal ``n`` and ``wait``.

        ``wait``: seconds to wait until ``n`` newcomers (or one) have come. Where nobody has come, a twin of this group.
        ``timeout``: seconds for all else. This group goes on living, and is closed by its owner or by being dropped.
        A newcomer that dies meanwhile is left out. PeerLostError where a member dies; RendezvousError, on all, where
        the store is gone in which newcomers wait: then nothing is broken. Cancelling breaks the group.
        """
        turn = self._turn("grow", None)

        def prepare() -> tuple[str, Callable[[Channel], Awaitable[Any]]]:
            if n is not None and (isinstance(n, bool) or not hasattr(n, "__index__") or index(n) < 1):
                raise UsageError(f"grow on rank {self._scope.rank}: n={n!r}, an int of at least 1 (or None) is needed")
            number = isinstance(wait, (int, float)) and not isinstance(wait, bool)
            if not (number and 0 <= wait < math.inf):
                raise UsageError(f"grow on rank {self._scope.rank}: wait={wait!r}, seconds from 0 up are needed")
            return f"grow n={n} wait={wait:g}", self._barrier().run

        begun = self._made(turn, timeout, prepare)

        def taken_back(how: str) -> None:
            begun._unstarted(how)
            begun.close()

        return Posted(self._grown(begun, turn, n, timeout, wait), taken_back, "grow")

    async def _grown(self, begun: Posted[Any], turn: Turn, n: int | None, timeout: float | None, wait: float) -> Group:
        if turn.number < 0:
            await begun  # says why the call could not be made
        id = identifier("grow", self._scope.id, turn.number)
        talk = self._open(id, self._scope.ranks, successor(self.name))
        talk._followed = True  # nobody else knows of it, or misses it
        await self._all_begin(begun, turn, talk)
        talk._scope.patient = True  # the call speaks for all that it does
        try:
            seconds = self._seconds(timeout, "grow")
            growth = Growth(talk, self._admission(), n, wait, seconds)
            group = await self._endpoint.stalls.around(
                growth.run(), turn.label, self._scope, wait + seconds, lambda: growth.waits_for, patience=wait
            )
        except RendezvousError:
            talk._abandon()
            raise  # the same on all members, and nobody's fault here
        except AiocollError as error:
            self._talks.append(talk)
            raise self._failed_to_grow(turn, error) from error
        except BaseException as error:
            self._talks.append(talk)
            self._gave_up(turn, talk, error)
            raise
        if talk is not group:
            talk._abandon()
        group._followed = group._scope.patient = False
        return self._followed_by(group)

    async def _all_begin(self, begun: Posted[Any], turn: Turn, talk: Group) -> None:
        """Returns once all members have called; raises where they will not."""
        try:
            await begun
        except (UsageError, MismatchError):
            talk._abandon()
            raise
        except BaseException:  # some may have come further, and shall not wait for this rank
            self._breaks_too(talk, turn)
            veto(talk, self.timeout)
            self._talks.append(talk)
            raise

    def _failed_to_grow(self, turn: Turn, error: AiocollError) -> AiocollError:
        """What broke the members' talk breaks this group; a death has done so already."""
        scope = self._scope
        if scope.broken is None:
            self._endpoint.failure.break_group(scope, renewed(error, turn.label))
        scope.raised = True
        ended = renewed(scope.broken or error, turn.label)
        self._says(ended, "grow", turn.number)
        return ended

    def _gave_up(self, turn: Turn, private: Group, error: BaseException) -> None:
        """This rank goes no further (it was cancelled, say): the others shall not wait for it."""
        cancelled = isinstance(error, (asyncio.CancelledError, GeneratorExit))
        what = "cancelled" if cancelled else f"failed with {type(error).__name__}: {error} in"
        self._taken_back(turn, "grow", what)
        self._breaks_too(private, turn)

    def _breaks_too(self, talk: Group, turn: Turn) -> None:
        """What has broken this group breaks the members' talk, also for those who have not heard of it."""
        if self._scope.broken is not None:
            self._endpoint.failure.break_group(talk._scope, renewed(self._scope.broken, turn.label))

    def _barrier(self) -> Any:
        raise NotImplementedError

    def _admission(self) -> Admission | None:
        raise NotImplementedError

    def _open(self, id: int, members: tuple[int, ...], label: str, *, owner: bool = False) -> Group:
        raise NotImplementedError

    def _followed_by(self, group: Group) -> Group:
        raise NotImplementedError


def veto(talk: Group, seconds: float) -> None:
    """This rank's No to what the members of ``talk`` agree on, or will; nobody here waits for what comes of it."""
    scope = talk._scope
    scope.recoveries += 1
    if not (scope.closed or talk._endpoint.closed):
        wish = Wish("agree", seconds, value=False)
        talk._endpoint.failure.agreement.begin(scope, scope.recoveries, wish)


class Growth:
    """One grow on one rank; ``talk`` is a twin of the group that only this grow knows."""

    def __init__(self, talk: Group, admission: Admission | None, n: int | None, wait: float, seconds: float) -> None:
        self._talk, self._admission, self._most = talk, admission, n
        self._loop = asyncio.get_running_loop()
        self._until = self._loop.time() + wait
        self._deadline = self._until + seconds
        self._tried = False
        self.waits_for: str = ""
        """In words, for whoever wonders why it takes so long."""

    def __repr__(self) -> str:
        return f"<Growth of {self._talk!r}>"

    async def run(self) -> Group:
        """The group that all members return, or the error that all of them raise: what it comes to is agreed upon,
        since some may hear of a death when others are through."""
        talk = self._talk
        while True:
            opened, reason = None, ""
            try:
                try:
                    plan = await self._plan()
                    if plan.get("guests"):
                        self._tried = True
                        opened, reason = await self._attempt(plan)
                    self.waits_for = "the other members, to agree on what has come of it"
                    agreed = await talk.agree(not reason, timeout=self._to_settle())
                    if not agreed:
                        await self._failed(plan, opened, reason)
                except BaseException as error:
                    self._withdraw(error)
                    raise
                if agreed:
                    group = await self._concluded(plan, opened)
                    opened = None
                    return group
            finally:
                if opened is not None:
                    await opened.discard()

    def _withdraw(self, error: BaseException) -> None:
        """This rank is out of it: those who would agree shall not wait for it."""
        talk = self._talk
        if talk.broken is None and isinstance(error, Exception):
            text = f"{talk._scope.me} failed in grow with {type(error).__name__}: {error}"
            broken = error if isinstance(error, AiocollError) else GroupBrokenError(text, **talk._scope.mine())
            talk._endpoint.failure.break_group(talk._scope, broken)
        veto(talk, self._to_settle())

    async def _concluded(self, plan: Plan, opened: Opened | None) -> Group:
        """All members have come here with the same plan."""
        talk = self._talk
        if refused := plan.get("refused"):
            _log.warning("grow of group %r on rank %d: %s", talk.name, talk.rank, refused)
        if failed := plan.get("failed"):
            raise RendezvousError(f"grow on rank {talk.rank} of group {talk.name!r}: {failed}")
        if opened is None:
            talk._own()
            return talk
        await self._herald(opened, plan, True)
        await self._settled(plan, [])
        return opened.group(talk.name, talk.timeout, tuple(range(talk.size, talk.size + len(plan["guests"]))))

    async def _failed(self, plan: Plan, opened: Opened | None, reason: str) -> None:
        """Some member has failed; raises where that is because the members are not what they were."""
        talk = self._talk
        if talk.broken is not None:
            raise talk.broken
        await self._herald(opened, plan, False)
        reasons = [each for each in await talk.all_gather_object(reason, timeout=self._to_settle()) if each]
        await self._settled(plan, reasons)

    def _left(self) -> float:
        """Seconds until the deadline; never none, since whoever is late is missed by others first."""
        return max(0.05, self._deadline - self._loop.time())

    def _to_settle(self) -> float:
        """Seconds for what settles an attempt: one that a newcomer lets fail at the deadline must break nothing."""
        return self._left() + _SETTLING_SECONDS

    async def _plan(self) -> Plan:
        """What rank 0 has decided."""
        mine: Plan | None = None
        talk = self._talk
        enough = "newcomers" if self._most is None else f"newcomers (up to {self._most})"
        self.waits_for = enough if talk.rank == 0 else f"rank 0, which looks for {enough}"
        if talk.rank == 0:
            mine = {}
            if self._admission is not None:
                most, until = self._most, min(self._until, self._deadline)
                if self._tried and self._loop.time() >= self._deadline:
                    most = 0  # whoever has kept all waiting until now is not asked again
                mine = await self._sound(self._admission.invite(most, until, talk.ranks, self._left() / 2))
            mine["name"] = talk.name
        plan: Plan = await talk.broadcast_object(mine, timeout=self._to_settle())
        return plan

    async def _attempt(self, plan: Plan) -> tuple[Opened | None, str]:
        """This rank's links in the larger group, or why there are none; raises what concerns the members."""
        talk, admission = self._talk, self._admission
        assert admission is not None
        opening, info, failure = admission.opening(), None, None
        who = ", ".join(f"{guest['who'].get('host')}:{guest['who'].get('pid')}" for guest in plan["guests"])
        self.waits_for = f"newcomers {who}, and members, to make their links"
        try:
            try:
                info = opening.info()
            except Exception as error:  # no descriptor is left, say: the others hear of it
                failure = error
            infos = await talk.all_gather_object(info, timeout=self._left())
            if failure is not None:
                return None, self._reason(failure)
            known = [each for each in infos if each is not None]
            if len(known) < len(infos):
                return None, "a member cannot be reached"
            return await self._sound(self._open(plan, opening, known)), ""
        except Exception as error:
            if talk.broken is not None:
                raise
            return None, self._reason(error)
        finally:
            opening.close()

    def _reason(self, error: Exception) -> str:
        _log.info("grow of group %r on rank %d", self._talk.name, self._talk.rank, exc_info=error)
        return f"rank {self._talk.rank}: {type(error).__name__}: {error}"

    async def _open(self, plan: Plan, opening: Opening, infos: list[dict[str, Any]]) -> Opened:
        """This rank's links to all others of the larger group."""
        talk, seconds = self._talk, min(_MEETING_SECONDS, self._left())
        everybody = [*infos, *(guest["info"] for guest in plan["guests"])]
        async with asyncio.timeout(seconds):
            if talk.rank == 0:
                assert self._admission is not None
                await self._admission.summon(plan, everybody)
            opened = await opening.open(plan, everybody, talk.rank)
        try:
            await opened.prove(seconds)
        except BaseException:
            await opened.discard()
            raise
        return opened

    async def _herald(self, opened: Opened | None, plan: Plan, admitted: bool) -> None:
        """Tells the newcomers; whoever is not told sees the links go."""
        if opened is None or self._talk.rank >= HERALDS_MAX:
            return
        size = self._talk.size
        for guest in range(size, size + len(plan["guests"])):
            pair = opened.between(self._talk.rank, guest)
            try:
                await pair.send_object(admitted, 1, timeout=1.0)
            except AiocollError:
                pass  # it has died in this very moment
            finally:
                pair._abandon()

    async def _settled(self, plan: Plan, reasons: list[str]) -> None:
        if self._talk.rank == 0 and self._admission is not None:
            await self._admission.settled(plan, reasons)

    async def _sound(self, work: Coroutine[Any, Any, T]) -> T:
        """The result of ``work``, unless the members' talk breaks meanwhile: then it is cancelled, and what it has just
        opened is closed."""
        doing = self._loop.create_task(work)
        watching = asyncio.ensure_future(self._talk.recv_object(tag=1, timeout=math.inf))  # nobody sends it
        try:
            await asyncio.wait((doing, watching), return_when=asyncio.FIRST_COMPLETED)
            if not doing.done():
                await watching  # raises what broke the group
            watching.cancel()
            await asyncio.wait((watching,))
            return doing.result()
        except BaseException:
            doing.cancel()
            watching.cancel()
            opened, _ = await asyncio.gather(doing, watching, return_exceptions=True)
            if isinstance(opened, Opened):
                await opened.discard()
            raise
