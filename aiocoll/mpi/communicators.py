"""Comm, Intracomm: ranks that work together, under MPI's names; made of a blocking group of aiocoll.

The rule: a communicator adds names to a group and nothing to what its calls do. Those made from another live as long as
that one: MPI's programs seldom free what they make.
"""

from __future__ import annotations

import math
import os
import sys
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Self, TypeVar

from ..errors import AiocollError
from ..sync import SyncGroup
from . import constants
from .calling import collective
from .collectives import Collectives
from .exceptions import NotInitializedError, UsageError, outside, translated
from .groups import Group
from .objects import Objects
from .persistent import PersistentMessages
from .seen import Seen

if TYPE_CHECKING:
    from .topology import Cartcomm

Made = TypeVar("Made", SyncGroup, SyncGroup | None)


class Comm(PersistentMessages, Collectives, Objects):
    """A communicator, or COMM_NULL if it has no group."""

    _held: SyncGroup | None
    _name: str
    _parent: Comm | None
    _made: list[SyncGroup]
    """Groups that grew out of this one or its children, and that nobody has freed."""

    def __new__(cls, group: SyncGroup | Comm | None = None, parent: Comm | None = None) -> Self:
        """``group``: what ``aiocoll.sync.connect()`` or ``aiocoll.launch`` gives, which stays its owner's to close;
        or a communicator, which goes on under another class: programs for mpi4py have subclasses with a ``__new__``."""
        self = super().__new__(cls)
        self._name, self._made, self._parent = "", [], parent
        if isinstance(group, Comm):
            self._held, self._seen, self._parent = group._group, group._seen, group
        else:
            self._held, self._seen = group, Seen()
        return self

    @property
    def _group(self) -> SyncGroup:
        group = self._held
        if group is None:
            raise NotInitializedError(
                "MPI.COMM_NULL (a rank that Split or Create left out, or a communicator that was freed) has no ranks; "
                "test `if comm != MPI.COMM_NULL:` first"
            )
        return group

    @property
    def group_of_aiocoll(self) -> SyncGroup:
        """The blocking group behind it: whatever aiocoll can do and MPI has no name for."""
        return self._group

    # ------------------------------------------------------------------------------------------ facts

    def Get_rank(self) -> int:
        """My rank."""
        return self._group.rank

    def Get_size(self) -> int:
        """How many ranks there are."""
        return self._group.size

    @property
    def rank(self) -> int:
        """My rank."""
        return self._group.rank

    @property
    def size(self) -> int:
        """How many ranks there are."""
        return self._group.size

    def Get_name(self) -> str:
        """Its name."""
        return self._name

    def Set_name(self, name: str) -> None:
        """Gives it a name."""
        self._name = name

    @property
    def name(self) -> str:
        """Its name."""
        return self._name

    @name.setter
    def name(self, name: str) -> None:
        self._name = name

    def Get_group(self) -> Group:
        """Its ranks as a Group."""
        group = self._group
        return Group(group.ranks, group.ranks[group.rank])

    @property
    def group(self) -> Group:
        """Its ranks as a Group."""
        return self.Get_group()

    def Is_inter(self) -> bool:
        """Always False here."""
        return False

    def Is_intra(self) -> bool:
        """Whether it has ranks."""
        return self._held is not None

    @property
    def is_inter(self) -> bool:
        """Always False here."""
        return False

    @property
    def is_intra(self) -> bool:
        """Whether it has ranks."""
        return self._held is not None

    @property
    def is_topo(self) -> bool:
        """Whether this is a grid."""
        return self.Get_topology() != constants.UNDEFINED

    @property
    def topology(self) -> int:
        """CART or UNDEFINED."""
        return self.Get_topology()

    def Get_topology(self) -> int:
        """CART or UNDEFINED."""
        return constants.UNDEFINED

    def Get_attr(self, keyval: int) -> int | None:
        """Only TAG_UB is known here."""
        return constants.TAG_MAX if keyval == constants.TAG_UB else None

    def Set_errhandler(self, errhandler: Any) -> None:
        """Only ERRORS_RETURN, which makes errors exceptions, as they always are here."""
        if errhandler is not constants.ERRORS_RETURN:
            raise outside("Comm", "Errhandler")

    def Compare(self, comm: Comm) -> int:
        """IDENT, CONGRUENT (the same ranks), SIMILAR (in another order) or UNEQUAL."""
        if self._group is comm._group:
            return constants.IDENT
        found = self.Get_group().Compare(comm.Get_group())
        return constants.CONGRUENT if found == constants.IDENT else found

    # ------------------------------------------------------------------------------------------ making others

    def Split(self, color: int = 0, key: int = 0) -> Intracomm:
        """Those who gave the same color, ordered by key, then rank; COMM_NULL for MPI.UNDEFINED."""
        return self._child(self._split(color, key))

    def Split_type(self, split_type: int, key: int = 0, info: Any = constants.INFO_NULL) -> Intracomm:
        """``MPI.COMM_TYPE_SHARED``: the ranks of my host."""
        group = self._group

        def color() -> int:
            if split_type == constants.UNDEFINED:
                return constants.UNDEFINED
            if split_type != constants.COMM_TYPE_SHARED:
                raise UsageError(f"Split_type on rank {group.rank}: only MPI.COMM_TYPE_SHARED is known")
            return group.hosts.index(group.hosts[group.rank])

        return self._child(self._split(collective(group, "split", color), key))

    def Create(self, group: Group) -> Intracomm:
        """The ranks of ``group``; called by all of this communicator, COMM_NULL for those who are not in it."""
        mine = self._group.ranks[self._group.rank]

        def place() -> tuple[int, int]:
            self._check_members(group, "Create")
            return (min(group.ranks), group.ranks.index(mine)) if mine in group.ranks else (constants.UNDEFINED, 0)

        return self._child(self._split(*collective(self._group, "split", place)))

    def Create_group(self, group: Group, tag: int = 0) -> Intracomm:
        """The same, called by the ranks of ``group`` only."""
        inner = self._group
        self._check_members(group, "Create_group")
        if inner.ranks[inner.rank] not in group.ranks:
            return self._child(None)
        ranks = [inner.ranks.index(each) for each in group.ranks]
        return self._child(self._grown(lambda: inner.subgroup(ranks, f"mpi-{tag}")))

    def Dup(self, info: Any = None) -> Intracomm:
        """The same ranks, whose calls and messages never meet those of this one."""
        return self._child(self._grown(self._group.dup))

    def Clone(self) -> Intracomm:
        """The same as Dup."""
        return self.Dup()

    def Dup_with_info(self, info: Any) -> Intracomm:
        """The same; hints to an MPI library are not needed."""
        return self.Dup()

    def Free(self) -> None:
        """Ends it: it is COMM_NULL from now on."""
        inner, first = self._group, self._first()
        first._made = [each for each in first._made if each is not inner]
        try:
            inner.close()
        except AiocollError as error:
            raise translated(error) from error.__cause__
        finally:
            self._held = None

    free = Free

    def _split(self, color: Any, key: int) -> SyncGroup | None:
        inner = self._group
        chosen = None if isinstance(color, int) and color == constants.UNDEFINED else color
        return self._grown(lambda: inner.split(chosen, key))

    def _grown(self, make: Callable[[], Made]) -> Made:
        try:
            made = make()
        except AiocollError as error:
            raise translated(error) from error.__cause__
        if made is not None:
            made.need_not_be_closed()
            self._first()._made.append(made)
        return made

    def _child(self, made: SyncGroup | None) -> Intracomm:
        return Intracomm(made, self)

    def _first(self) -> Comm:
        first = self
        while first._parent is not None:
            first = first._parent
        return first

    def _check_members(self, group: Group, what: str) -> None:
        inner = self._group
        strangers = [each for each in group.ranks if each not in inner.ranks]
        if strangers:
            raise UsageError(
                f"{what} on rank {inner.rank}: ranks {strangers} of the world are not in this communicator"
            )

    def Attach_buffer(self, buf: Any) -> None:
        """For Bsend, which here needs no buffer: nothing."""

    def Detach_buffer(self) -> None:
        """Nothing either: what Bsend was given may be changed when it returns."""

    # ------------------------------------------------------------------------------------------ the end

    def Abort(self, errorcode: int = 0) -> None:
        """Ends this process at once, and with it the job: nothing is cleaned up, no ``finally`` runs.

        The exit code is ``errorcode``, or 1 for 0: a rank that ends with 0 would have done its work. The others get
        PeerLostError; under ``aiocoll run`` they are ended.
        """
        code = errorcode & 0xFF or 1
        held = self._held
        who = f"rank {held.rank} of {held.size}" if held is not None else "a rank"
        sys.stdout.flush()
        sys.stderr.write(f"aiocoll.mpi: {who} called Abort({errorcode})\n")
        sys.stderr.flush()
        os._exit(code)

    # ------------------------------------------------------------------------------------------ an object

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Comm):
            return NotImplemented
        if self is other or (not self and not other):
            return True
        return self._held is not None and self._held is other._held

    def __hash__(self) -> int:
        return id(self)

    def __bool__(self) -> bool:
        return self._held is not None

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        raise outside("Comm", name)

    def __repr__(self) -> str:
        if self._held is None:
            return "MPI.COMM_NULL"
        return f"{type(self).__name__}({self._name + ', ' if self._name else ''}rank {self.rank} of {self.size})"


class Intracomm(Comm):
    """A communicator of one group of ranks, which all are here."""

    def Create_cart(
        self, dims: Sequence[int], periods: Sequence[bool] | None = None, reorder: bool = False
    ) -> Cartcomm:
        """The same ranks as a grid of ``dims``; COMM_NULL for those that are too many. Ranks keep their order."""
        from .topology import Cartcomm, checked

        inner = self._group
        shape, around = collective(inner, "split", lambda: checked(dims, periods, inner.size, inner.rank))
        cells = math.prod(shape)
        made = self._split(0 if inner.rank < cells else constants.UNDEFINED, inner.rank)
        return Cartcomm(made, self, shape, around)
