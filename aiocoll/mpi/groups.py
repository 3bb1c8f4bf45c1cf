"""Group: an ordered set of ranks; the rule: arithmetic only, nothing is sent and nobody is asked."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from .constants import IDENT, SIMILAR, UNDEFINED, UNEQUAL
from .exceptions import RankError, UsageError, outside


class Group:
    """Ranks of the world, in order; ``Comm.Create(group)`` makes a communicator of them."""

    __slots__ = ("_me", "ranks")

    def __init__(self, ranks: Sequence[int], me: int) -> None:
        """``me``: my rank in the world."""
        self.ranks: tuple[int, ...] = tuple(ranks)
        self._me = me

    @property
    def size(self) -> int:
        """How many there are."""
        return len(self.ranks)

    @property
    def rank(self) -> int:
        """My place among them, or UNDEFINED."""
        return self.ranks.index(self._me) if self._me in self.ranks else UNDEFINED

    def Get_size(self) -> int:
        """How many there are."""
        return self.size

    def Get_rank(self) -> int:
        """My place among them, or UNDEFINED."""
        return self.rank

    def Incl(self, ranks: Sequence[int]) -> Group:
        """These of them, in this order."""
        return self._of([self._at(rank, "Incl") for rank in ranks])

    def Excl(self, ranks: Sequence[int]) -> Group:
        """All but these."""
        gone = {self._at(rank, "Excl") for rank in ranks}
        return self._of([each for each in self.ranks if each not in gone])

    def Range_incl(self, ranks: Sequence[tuple[int, int, int]]) -> Group:
        """Those in ranges (first, last, stride)."""
        return self.Incl(_in_ranges(ranks))

    def Range_excl(self, ranks: Sequence[tuple[int, int, int]]) -> Group:
        """All but those in ranges (first, last, stride)."""
        return self.Excl(_in_ranges(ranks))

    @classmethod
    def Union(cls, group1: Group, group2: Group) -> Group:
        """All of the first, then those that only the second has."""
        return group1._of([*group1.ranks, *(each for each in group2.ranks if each not in group1.ranks)])

    @classmethod
    def Intersection(cls, group1: Group, group2: Group) -> Group:
        """Those of the first that the second has, too."""
        return group1._of([each for each in group1.ranks if each in group2.ranks])

    Intersect = Intersection

    @classmethod
    def Difference(cls, group1: Group, group2: Group) -> Group:
        """Those of the first that the second has not."""
        return group1._of([each for each in group1.ranks if each not in group2.ranks])

    def Compare(self, group: Group) -> int:
        """IDENT, SIMILAR (another order) or UNEQUAL."""
        if self.ranks == group.ranks:
            return IDENT
        return SIMILAR if sorted(self.ranks) == sorted(group.ranks) else UNEQUAL

    def Translate_ranks(self, ranks: Sequence[int] | None = None, group: Group | None = None) -> list[int]:
        """What ranks of this group are in another one; UNDEFINED for those that it has not."""
        if group is None:
            raise UsageError("Translate_ranks: name the group whose ranks are wanted")
        mine = range(self.size) if ranks is None else ranks
        found = [self._at(rank, "Translate_ranks") for rank in mine]
        return [group.ranks.index(each) if each in group.ranks else UNDEFINED for each in found]

    def Dup(self) -> Group:
        """The same again."""
        return self._of(self.ranks)

    def Free(self) -> None:
        """It is not used any more."""

    free = Free

    def _of(self, ranks: Sequence[int]) -> Group:
        if len(set(ranks)) != len(ranks):
            raise RankError(f"a group has each rank once: {list(ranks)}")
        return Group(ranks, self._me)

    def _at(self, rank: int, what: str) -> int:
        if not 0 <= rank < self.size:
            raise RankError(f"{what}: {rank} is no rank of a group of {self.size}")
        return self.ranks[rank]

    def __eq__(self, other: object) -> bool:
        return self.ranks == other.ranks if isinstance(other, Group) else NotImplemented

    def __hash__(self) -> int:
        return hash(self.ranks)

    def __bool__(self) -> bool:
        return True

    def __getattr__(self, name: str) -> Any:
        raise outside("Group", name)

    def __repr__(self) -> str:
        return f"Group{self.ranks}"


def _in_ranges(ranges: Sequence[tuple[int, int, int]]) -> list[int]:
    return [rank for first, last, step in ranges for rank in range(first, last + (1 if step > 0 else -1), step)]
