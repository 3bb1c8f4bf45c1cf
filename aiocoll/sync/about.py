"""What a blocking group is: its members, its state, its memory.

The rule: nothing here waits or sends.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NoReturn, overload

from .drivers import Driver

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from ..group import Group
    from ..group.typed import Dtype
    from .started import Started


class About:
    """The facts about a SyncGroup."""

    __slots__ = ("__weakref__", "_closed", "_driver", "_group", "_numbers")

    def __init__(self, group: Group, driver: Driver) -> None:
        self._group, self._driver = group, driver
        self._closed = False
        self._numbers: dict[int, int] | None = None

    def __reduce__(self) -> NoReturn:
        """A copy would end the world when it goes."""
        raise TypeError(f"{self!r} is neither copied nor pickled: it is this process's; dup() makes a twin of a group")

    def __repr__(self) -> str:
        return f"SyncGroup({self._group!r}, {self._driver!r})"

    @property
    def rank(self) -> int:
        """My rank in this group."""
        return self._group.rank

    @property
    def size(self) -> int:
        """How many ranks this group has."""
        return self._group.size

    @property
    def name(self) -> str:
        """What errors call this group."""
        return self._group.name

    @property
    def ranks(self) -> tuple[int, ...]:
        """The members as ranks of the world, in this group's order."""
        ranks, numbers = self._group.ranks, self._numbers
        return ranks if numbers is None else tuple(numbers[rank] for rank in ranks)

    def count_anew(self) -> None:
        """This group is the world from now on: its ranks are those of the world, for itself and what is made of it."""
        self._numbers = {before: rank for rank, before in enumerate(self._group.ranks)}

    @property
    def local_rank(self) -> int:
        """My number among the ranks on this host."""
        return self._group.local_rank

    @property
    def local_size(self) -> int:
        """How many ranks of this group are on this host."""
        return self._group.local_size

    @property
    def hosts(self) -> tuple[str, ...]:
        """The host of each rank."""
        return self._group.hosts

    @property
    def timeout(self) -> float:
        """Seconds that a call gets unless it says otherwise."""
        return self._group.timeout

    @timeout.setter
    def timeout(self, seconds: float) -> None:
        self._group.timeout = seconds

    @property
    def new_ranks(self) -> tuple[int, ...]:
        """The ranks of this group that ``grow`` has admitted."""
        return self._group.new_ranks

    @property
    def broken(self) -> BaseException | None:
        """What broke this group, or None."""
        return self._group.broken

    @property
    def closed(self) -> bool:
        """Whether this group has been closed here."""
        return self._closed or self._driver.ended or self._group.closed

    @property
    def followed(self) -> bool:
        """Whether nobody need close this one, as when another group has taken its place."""
        return self._group._followed

    def need_not_be_closed(self) -> None:
        """From now on this group may be dropped without a warning: it ends then, or with what it grew out of."""
        self._group._followed = True

    @property
    def foreign(self) -> bool:
        """Is this a forked child, which has this group only in name?"""
        return self._driver.foreign

    @property
    def under_way(self) -> list[Started[Any]]:
        """What was started on this group's loop and has not ended."""
        return sorted(list(self._driver.operations), key=lambda each: each.name)

    @property
    def asynchronous(self) -> Group:
        """The async Group behind this one; it lives on this group's own loop, see ``run``."""
        return self._group

    def note(self, kind: str, **facts: Any) -> None:
        """The flight recorder, and whoever observes, hear that ``kind`` happened."""
        self._group._endpoint.note(kind, **facts)

    def statistics(self) -> dict[str, Any]:
        """Calls by collective, bytes by transport, seconds waited, unreceived bytes."""
        return self._group.statistics()

    @overload
    def empty(self, shape: int | Sequence[int]) -> NDArray[np.float64]: ...
    @overload
    def empty(self, shape: int | Sequence[int], dtype: type[Dtype] | np.dtype[Dtype]) -> NDArray[Dtype]: ...
    @overload
    def empty(self, shape: int | Sequence[int], dtype: Any = float) -> NDArray[Any]: ...

    def empty(self, shape: int | Sequence[int], dtype: Any = float) -> NDArray[Any]:
        """An array with no particular content, in memory that suits this group's transport."""
        return self._group.empty(shape, dtype)

    @overload
    def zeros(self, shape: int | Sequence[int]) -> NDArray[np.float64]: ...
    @overload
    def zeros(self, shape: int | Sequence[int], dtype: type[Dtype] | np.dtype[Dtype]) -> NDArray[Dtype]: ...
    @overload
    def zeros(self, shape: int | Sequence[int], dtype: Any = float) -> NDArray[Any]: ...

    def zeros(self, shape: int | Sequence[int], dtype: Any = float) -> NDArray[Any]:
        """An array of zeros in such memory."""
        return self._group.zeros(shape, dtype)
