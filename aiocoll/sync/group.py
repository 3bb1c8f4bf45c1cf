"""SyncGroup: the methods of Group, blocking.

The rule: a method here does two things, it names the call and lets the driver run it; what a call does is written once,
in the async Group.
"""

from __future__ import annotations

import warnings
from collections.abc import Awaitable, Callable, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Any, TypeVar

from .calls import SyncCalls
from .drivers import Driver
from .leaving import leave_at_the_end
from .start import Starter

if TYPE_CHECKING:
    from ..group import Group
    from ..group.ownership import Lineage

T = TypeVar("T")


class SyncGroup(SyncCalls):
    """Ranks that work together, for code that blocks. Arguments, results and errors are those of ``aiocoll.Group``.

    Usable from several threads: messages at any time, collectives one after the other in the order called. A context
    manager; leaving it closes the group, and for the group that ``connect()`` gave everything that grew out of it.
    """

    __slots__ = ("_parent", "_root")

    def __init__(self, group: Group, driver: Driver, parent: SyncGroup | None = None, *, root: bool = False) -> None:
        """``parent``: the group of whose connection this one is a part, and which shall not be dropped before it;
        ``root``: it is what ``connect()`` gave."""
        super().__init__(group, driver)
        self._parent, self._root = parent, root

    # ------------------------------------------------------------------------------------------ the driver

    @property
    def start(self) -> Starter:
        """The same calls, started instead of waited for: ``group.start.all_reduce(x)`` returns a ``Work``."""
        return Starter(self)  # made when asked for: a group that held it would be a cycle, and dropped late

    # ------------------------------------------------------------------------------------------ groups

    def split(self, color: int | str | None, key: int | str | None = None) -> SyncGroup | None:
        """The group of those who gave the same color, ordered by key, then rank; None for color None."""
        group = self._driver.run_as_task(lambda: self._group.split(color, key))
        return None if group is None else self._wrapped(group)

    def subgroup(self, ranks: Sequence[int], name: str | None = None) -> SyncGroup:
        """The group of these ranks in this order; only they call."""
        return self._wrapped(self._driver.run_as_task(lambda: self._group.subgroup(ranks, name)))

    def dup(self) -> SyncGroup:
        """The same ranks again, with calls of their own."""
        return self._wrapped(self._driver.run_as_task(lambda: self._group.dup()))

    def agree(self, flag: Any = True, *, timeout: float | None = None) -> bool:
        """True if every living member passed something true; the same on all survivors, whoever dies meanwhile."""
        return self._driver.run(lambda: self._group.agree(flag, timeout=timeout))

    def shrink(self, *, timeout: float | None = None, force: bool = False) -> SyncGroup:
        """The group of the living members, in their order; without a majority only by ``force``."""
        return self._successor(self._driver.run_as_task(lambda: self._group.shrink(timeout=timeout, force=force)))

    def exclude(self, ranks: Sequence[int]) -> SyncGroup:
        """The group of the members that are not among ``ranks``, from a broken group, too; only they call."""
        return self._successor(self._driver.run_as_task(lambda: self._group.exclude(ranks)))

    def abort(self, why: str = "") -> None:
        """Breaks this group at once, for everybody: what is pending raises GroupBrokenError, with the reason."""
        self._driver.run_as_task(lambda: self._group.abort(why))

    def grow(self, n: int | None = None, *, timeout: float | None = None, wait: float = 0.0) -> SyncGroup:
        """The larger group: the members, then newcomers that wait (or come within ``wait`` seconds), at most ``n``."""
        return self._successor(self._driver.run_as_task(lambda: self._group.grow(n, timeout=timeout, wait=wait)))

    def _wrapped(self, group: Group) -> SyncGroup:
        made = SyncGroup(group, self._driver, self)
        made._numbers = self._numbers
        return made

    def _successor(self, group: Group) -> SyncGroup:
        """The blocking group for one that takes this one's place."""
        self._driver.serve(group._endpoint, group.local_size)
        successor = SyncGroup(group, self._driver)
        if all(rank in (self._numbers or ()) for rank in group.ranks):
            successor._numbers = self._numbers
        leave_at_the_end(successor)
        return successor

    # ------------------------------------------------------------------------------------------ the end

    def close(self) -> None:
        """Lets pending sends leave, ends what waits; again, and in a forked child: nothing. Closing the last of the
        groups that ``connect``, ``shrink`` and ``grow`` gave disconnects."""
        if not self._closed:
            self._leave(lambda: self._group.close())

    def disconnect(self) -> None:
        """Closes everything that has grown out of the same ``connect()``."""
        self._leave(self._lineage.close, everything=True)

    def __enter__(self) -> SyncGroup:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if not self._root:
            if not self._closed:
                self._leave(lambda: self._group.__aexit__(kind, error, trace))
            return
        lineage = self._lineage

        async def everything() -> None:
            if error is not None:
                lineage.program_failed(error)
            await lineage.close()

        self._leave(everything, everything=True)

    @property
    def _lineage(self) -> Lineage:
        connection = self._group._connection
        assert connection is not None
        return connection.lineage

    def _leave(self, closing: Callable[[], Awaitable[None]], *, everything: bool = False) -> None:
        if self.foreign or self._driver.ended:
            return
        self._driver.refuse_if_unusable()
        self._closed = True
        try:
            if everything:
                self._driver.close(closing)
            elif self._lineage.owners() != [self._group]:
                self._driver.run_as_task(closing)
            else:
                lineage = self._lineage

                async def last() -> None:
                    await closing()
                    await lineage.close()

                self._driver.close(last)
        except BaseException:  # a Ctrl-C before the end leaves it to be closed
            self._closed = self._driver.ended
            raise

    def __del__(self) -> None:
        if getattr(self, "_closed", True) or self.foreign or self._driver.ended or not self._group._owner:
            return
        if any(group is not self._group for group in self._lineage.owners()):
            return  # the async group says whether it has been forgotten, and what it is part of goes on
        if not self.followed:
            text = f"{self!r} was never closed: use it in a with block"
            warnings.warn(text, ResourceWarning, stacklevel=2, source=self)
        self._driver.abandon()
