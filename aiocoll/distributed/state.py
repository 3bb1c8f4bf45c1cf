"""The module state of the documented API: the world, the backend, the groups that new_group() has made.

The rule: this file knows who is a member of what, and sends nothing.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import timedelta
from typing import NoReturn

from ..errors import NotInitializedError
from ..sync import SyncGroup
from .constants import _INITIALIZED_PG, NUMBER_OF_BACKEND, Backend, dist_backend
from .refusals import RuntimeUsageError, TypeUsageError
from .timeouts import seconds_of

NON_GROUP_MEMBER = -100  # the value that today's API gives to those who are not in a new group


class ProcessGroup:
    """What ``new_group()`` returns to a member: opaque but for what stands here."""

    __slots__ = ("__weakref__", "_member")

    def __init__(self, member: SyncGroup) -> None:
        self._member = member

    def rank(self) -> int:
        """My rank in this group."""
        return self.member().rank

    def size(self) -> int:
        """How many ranks this group has."""
        return self.member().size

    def name(self) -> str:
        """The name under which errors mention this group."""
        return self.member().name

    @property
    def group_name(self) -> str:
        """The same."""
        return self.member().name

    @property
    def group_desc(self) -> str:
        """The same: what ``group_desc=`` said, or a name made of the members."""
        return self.member().name

    def set_timeout(self, timeout: timedelta | float) -> None:
        """The deadline of this group's calls from now on."""
        limit = seconds_of(timeout)
        if limit is None:
            raise TypeUsageError("set_timeout: a datetime.timedelta or seconds, not None")
        self.member().timeout = limit

    def abort(self) -> None:
        """Ends what is pending on this group with GroupBrokenError, here and on the other members, and never waits for
        anybody. The process lives on; ``shrink_group`` makes a smaller group, ``destroy_process_group`` leaves."""
        member = self.member()
        if not member.closed:
            member.abort()

    def shutdown(self) -> None:
        """Closes the group in good order: messages on their way may leave. Calls raise NotInitializedError then."""
        self.member().close()

    def member(self) -> SyncGroup:
        """The blocking group behind this handle; NotInitializedError where it is gone."""
        if STATE.groups.get(id(self)) is not self:
            raise NotInitializedError(f"{self!r} was destroyed: make a new group with new_group()")
        return self._member

    def __reduce__(self) -> NoReturn | str:
        raise TypeError(f"{self!r} is neither copied nor pickled: it is this process's; new_group() makes another one")

    def __repr__(self) -> str:
        return f"ProcessGroup({self._member!r})"


class World(ProcessGroup):
    """``group.WORLD``: all ranks, whichever world is joined at the moment of the call."""

    __slots__ = ()

    def __init__(self) -> None:
        pass  # there is nothing to hold: the world is looked up in each call

    def member(self) -> SyncGroup:
        return world()

    def __reduce__(self) -> str:
        return "WORLD"  # of this module: copied and pickled by name

    def __repr__(self) -> str:
        return f"group.WORLD({STATE.world!r})" if STATE.world is not None else "group.WORLD(not initialized)"


@dataclass(slots=True)
class State:
    """What this process has joined."""

    backend_name: str = Backend.UNDEFINED
    world: SyncGroup | None = None
    groups: dict[int, ProcessGroup] = field(default_factory=dict)
    """The handles that are in use, by their identity."""
    made: int = 0
    """How many groups have been made, the world and those in which this process is not included."""

    @property
    def initialized(self) -> int:
        """The documented value for process-group mode, or 0."""
        return 0 if self.world is None else _INITIALIZED_PG

    @property
    def backend(self) -> int:
        """The backend's value in ``dist_backend``."""
        return NUMBER_OF_BACKEND.get(self.backend_name, dist_backend.UNDEFINED)

    def join(self, group: SyncGroup, backend_name: str) -> None:
        """From here on the process is in process-group mode."""
        self.world, self.backend_name, self.made = group, backend_name, 1

    def follow(self, group: SyncGroup) -> None:
        """The world goes on as ``group``, whose ranks are counted anew; other groups of it are no more."""
        groups, self.groups = self.groups, {}
        for each in groups.values():
            each._member.close()
        group.count_anew()
        self.world, self.made = group, 1

    def register(self, member: SyncGroup) -> ProcessGroup:
        """A handle for a group that this process has just become a member of."""
        handle = ProcessGroup(member)
        self.groups[id(handle)] = handle
        return handle

    def leave(self) -> None:
        """Forgets everything and closes the world, every group, and everything that has grown out of it."""
        joined, groups = world(), self.groups
        self.world, self.groups, self.backend_name = None, {}, Backend.UNDEFINED
        self.made = 0
        joined.disconnect()
        groups.clear()  # not before: a group that goes while the world is open was forgotten by its owner


STATE = State()


class group:  # the documented name is lower case
    """The sentinel for all ranks."""

    WORLD = World()


class GroupMember:
    """Today's name for the same, and what an outsider of a new group gets."""

    WORLD = group.WORLD
    NON_GROUP_MEMBER = NON_GROUP_MEMBER


WORLD = group.WORLD


def world() -> SyncGroup:
    """The world, or NotInitializedError with the documented words."""
    joined = STATE.world
    if joined is None:
        raise NotInitializedError(
            "collective only supported in process-group mode: call aiocoll.distributed.init_process_group() first"
        )
    return joined


def member_of(handle: object) -> SyncGroup | None:
    """The blocking group behind a ``group=`` argument; None when I am not in it."""
    joined = world()
    if handle is None or handle is WORLD:
        return joined
    if isinstance(handle, ProcessGroup):
        return handle.member()
    if isinstance(handle, int) and not isinstance(handle, bool) and handle == NON_GROUP_MEMBER:
        return None
    raise RuntimeUsageError(
        "group should be an int or one of the values from torch.distributed.group "
        f"(here: aiocoll.distributed.group.WORLD or what new_group() has returned), not {handle!r}"
    )
