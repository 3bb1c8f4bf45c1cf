"""How a newcomer gets into a job that is under way: it waits in the lobby, opens links when it is summoned, and is in
once a member says so.

The rule: it takes part in one attempt at a time, and an attempt that comes to nothing leaves it where it was in line.
"""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from ..errors import AiocollError, GroupBrokenError, PeerLostError, RendezvousError, RendezvousTimeoutError
from ..group import Group
from ..group.growing import HERALDS_MAX
from ..group.ownership import Lineage
from ..observe import report
from ..rendezvous.lobby import Waiting, process_is_dead
from ..rendezvous.meet import lobby_of
from ..rendezvous.meeting import clean_up
from ..rendezvous.reach import reach
from ..rendezvous.request import Reached
from ..store.users import me
from .admitting import Admission
from .opening import Opened, Opening, Wanted

_log = logging.getLogger("aiocoll.rendezvous")
_MEETING_SECONDS: Final = 20.0
"""How long one attempt may take from one step to the next."""
_GRACE_SECONDS: Final = 5.0
"""How much longer than its deadline one waits whom some member is just about to let in."""
_WORD_SECONDS: Final = 2.0
"""How often one that hears nothing looks whether it still stands in the line."""


async def enter(wanted: Wanted, arguments: Mapping[str, Any]) -> Group:
    """The group that some ``grow()`` of the job's members returns, with this process in it."""
    lobby = lobby_of(arguments["group_name"], wanted.name)
    started = asyncio.get_running_loop().time()
    reached = await reach(
        arguments["init_method"], store=arguments["store"], place=wanted.place, job=wanted.job, secret=wanted.secret,
        path=lobby, timeout=min(wanted.timeout, 1e9),
    )  # fmt: skip
    group = await join(wanted, reached, lobby, started=started, tell=report.tell)
    report.tell("met")
    return group


async def join(
    wanted: Wanted, reached: Reached, lobby: str, *, started: float | None = None,
    seconds: float = math.inf, tell: Callable[[str], object] | None = None,
) -> Group:  # fmt: skip
    """The same, where the job has been ``reached``; waits for so many ``seconds`` at most. ``tell("waiting")`` is
    called when this process stands in line."""
    try:
        waits = min(seconds, wanted.timeout)
        return await _Newcomer(wanted, reached, lobby, started, waits, tell).run()
    except BaseException:
        await clean_up([reached.close])
        raise


class _Newcomer:
    """One process that wants in."""

    def __init__(
        self, wanted: Wanted, reached: Reached, lobby: str, started: float | None, seconds: float,
        tell: Callable[[str], object] | None,
    ) -> None:  # fmt: skip
        self._wanted, self._reached, self._lobby, self._tell = wanted, reached, lobby, tell
        self._line = Waiting(reached.store, lobby)
        self._started: float = asyncio.get_running_loop().time() if started is None else started
        self._until: float = self._started + seconds
        self._lineage = Lineage(asyncio.get_running_loop(), end=reached.close)
        self._attempt: _Attempt | None = None

    def __repr__(self) -> str:
        return f"<newcomer to {self._lobby!r} at {self._reached.where}, {self._attempt!r}>"

    async def run(self) -> Group:
        word: asyncio.Task[dict[str, Any] | None] | None = None
        group: Group | None = None
        try:
            await self._line.enlist()
            if self._tell is not None:
                self._tell("waiting")
            _log.info("%s: waits for the job %r to grow", self._reached.where, self._lobby)
            while True:
                left = self._until - asyncio.get_running_loop().time()
                if left <= (0 if self._attempt is None else -_GRACE_SECONDS):
                    raise await self._in_vain()
                if word is None:
                    seconds = left if left > 0 else _GRACE_SECONDS + left
                    word = asyncio.ensure_future(self._line.word(min(max(seconds, 0.05), _WORD_SECONDS)))
                waits: set[asyncio.Future[Any]] = {word}
                if self._attempt is not None:
                    waits.add(self._attempt.task)
                await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
                if (group := self._admitted()) is not None:
                    return group
                if word.done():
                    said, word = word.result(), None
                    await self._heed(said)
        finally:
            try:
                await self._end(word)
            except BaseException:  # cancelled on the very threshold: the members shall not wait for it
                if group is not None:
                    await group.close()
                raise

    async def _end(self, word: asyncio.Task[Any] | None) -> None:
        if word is not None:
            word.cancel()
            await asyncio.gather(word, return_exceptions=True)
        if self._attempt is not None:
            await self._attempt.give_up()
        await clean_up([self._line.leave])

    def _admitted(self) -> Group | None:
        """The group if the attempt that was under way has succeeded."""
        attempt = self._attempt
        if attempt is None or not attempt.task.done():
            return None
        self._attempt = None
        return attempt.task.result()

    async def _heed(self, said: dict[str, Any] | None) -> None:
        """Does what a member wants."""
        if said is None:
            await self._line.enlist()
            return
        kind, attempt = said.get("t"), self._attempt
        if kind == "ask":
            await self._asked(str(said.get("attempt")), dict(said.get("who") or {}), list(said.get("lost") or ()))
        elif kind == "meet":
            if attempt is not None and attempt.id == dict(said.get("plan") or {}).get("attempt"):
                attempt.summon(said)
        elif kind == "refused":
            raise RendezvousError(
                f"{self._reached.where}: this process was not admitted to the job {self._lobby!r}: {said.get('text')}"
            )

    async def _asked(self, id: str, asker: dict[str, Any], lost: Sequence[Any]) -> None:
        """A member wants to know how this process is reached."""
        if self._attempt is not None:
            if not self._attempt.yields_to(asker, lost):
                await self._line.answer(id, None)
                return
            await self._attempt.give_up()
            self._attempt = None
        attempt = _Attempt(self._wanted, self._lineage, self._reached, id, asker)
        info = attempt.begin()
        self._attempt = attempt
        await self._line.answer(id, info)

    async def _in_vain(self) -> RendezvousTimeoutError:
        who, waited = me(), asyncio.get_running_loop().time() - self._started
        try:
            members = await self._line.members()
        except (AiocollError, OSError) as error:
            members = f"nobody knows ({error})"
        return RendezvousTimeoutError(
            f"{self._reached.where}: newcomer {who['host']}:{who['pid']} has waited {waited:.1f} s to join the job "
            f"{self._lobby!r}, and no grow() was called there that had room for it; in the job: {members}. Its members "
            "let newcomers in with group.grow(); timeout= waits longer"
        )


class _Attempt:
    """One attempt to become a rank; its task gives the group, or None when nothing has come of it."""

    def __init__(self, wanted: Wanted, lineage: Lineage, reached: Reached, id: str, asker: Mapping[str, Any]) -> None:
        self._wanted, self._lineage, self._reached, self.id, self._asker = wanted, lineage, reached, id, asker
        address = wanted.settings.host or reached.address
        self._opening = Opening(wanted, lineage, reached.store, reached.where, address)
        self._summons: asyncio.Future[dict[str, Any]] = asyncio.get_running_loop().create_future()
        self.task: asyncio.Task[Group | None]

    def __repr__(self) -> str:
        return f"<attempt {self.id}>"

    def begin(self) -> dict[str, Any]:
        """What the members must know of this process; it can be summoned from now on."""
        try:
            info = self._opening.info()
        except BaseException:
            self._opening.close()
            raise
        self.task = asyncio.ensure_future(self._run())
        return info

    async def give_up(self) -> None:
        """Nothing shall come of it."""
        self.task.cancel()
        (result,) = await asyncio.gather(self.task, return_exceptions=True)
        self._opening.close()  # a task that is cancelled before its first step does not
        if isinstance(result, Group):  # it had succeeded in this very moment
            await result.close()

    def yields_to(self, asker: Mapping[str, Any], lost: Sequence[Any]) -> bool:
        """Whether nothing can come of this any more, now that ``asker``, who has seen the ``lost`` go, wants something
        else."""
        here = [self._asker.get("host"), self._asker.get("pid")]
        return dict(asker) == dict(self._asker) or here in map(list, lost) or process_is_dead(self._asker)

    def summon(self, word: dict[str, Any]) -> None:
        """The members are about to make links."""
        if not self._summons.done():
            self._summons.set_result(word)

    async def _run(self) -> Group | None:
        try:
            async with asyncio.timeout(_MEETING_SECONDS):
                word = await self._summons
            return await self._meet(word)
        except (AiocollError, OSError, KeyError, TypeError, ValueError) as error:
            _log.info("%s: an attempt to join has come to nothing: %s", self._reached.where, error or "it took long")
            return None
        finally:
            self._opening.close()

    async def _meet(self, word: dict[str, Any]) -> Group | None:
        plan, infos, members = dict(word["plan"]), list(word["infos"]), int(word["members"])
        async with asyncio.timeout(_MEETING_SECONDS):
            opened = await self._opening.open(plan, infos, int(word["rank"]))
        admitted = False
        try:
            try:
                await opened.prove(_MEETING_SECONDS)
            except (PeerLostError, GroupBrokenError) as error:  # the members know whether that came before or after
                _log.info("%s: while an attempt to join was made: %s", self._reached.where, error)
            admitted = await _told(opened, members, int(word["rank"]))
        finally:
            if not admitted:
                await opened.discard()
        if not admitted:
            return None
        self._lineage.admission = Admission(
            self._wanted, self._lineage, self._reached.store, str(word["lobby"]), where=self._reached.where,
            numbers=str(word["counter"]), address=str(infos[int(word["rank"])].get("address", "")),
        )  # fmt: skip
        return opened.group(str(plan["name"]), self._wanted.timeout, tuple(range(members, len(infos))))


async def _told(opened: Opened, members: int, rank: int) -> bool:
    """Whether a member says that this process is in; not if all of them have gone."""
    pairs = [opened.between(member, rank) for member in range(min(members, HERALDS_MAX))]
    words = [asyncio.ensure_future(pair.recv_object(0, timeout=_MEETING_SECONDS)) for pair in pairs]
    try:
        while words:
            await asyncio.wait(words, return_when=asyncio.FIRST_COMPLETED)
            heard, words = [word for word in words if word.done()], [word for word in words if not word.done()]
            for said in [word.result() for word in heard if word.exception() is None]:
                return bool(said)
        return False
    finally:
        for word in words:
            word.cancel()
        await asyncio.gather(*words, return_exceptions=True)
        for pair in pairs:
            pair._abandon()
