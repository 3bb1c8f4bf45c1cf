"""Groups within the world: new_group and its kin, shrink_group, and whose rank is whose.

The rule: what all ranks must give alike is judged before a group is made, and who is not in it is told so by the value
that is documented for that.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import timedelta
from typing import Any, Final

from ..errors import AiocollError, UsageError
from ..sync import SyncGroup
from .arguments import integer, switch
from .backends import backend_named, transport_of
from .debug import told
from .refusals import RuntimeUsageError, TypeUsageError, documented
from .state import NON_GROUP_MEMBER, STATE, WORLD, ProcessGroup, member_of, world
from .timeouts import seconds_of

SHRINK_DEFAULT: Final = 0
"""``shrink_group``: what is pending on the group is left to itself."""
SHRINK_ABORT: Final = 1
"""``shrink_group``: what is pending on the group ends first, with an error."""

Timeout = float | timedelta | None


def new_group(
    ranks: Iterable[int] | None = None,
    timeout: Timeout = None,
    backend: str | None = None,
    pg_options: Any = None,
    use_local_synchronization: bool = False,
    group_desc: str | None = None,
    device_id: Any = None,
    sort_ranks: bool = True,
) -> ProcessGroup | int:
    """Creates a new distributed group.

    All processes of the world call it, also those who are not going to be members; with ``use_local_synchronization``
    only the members do. Nobody waits for anybody, and a group costs no connection.

    Arguments:
        ranks: Ranks of the world; None for all. Their order does not matter: the smallest becomes rank 0.
        timeout: Default deadline of the group's calls; else the world's.
        backend: Accepted; a group uses the world's links.
        use_local_synchronization: Only members call; outsiders may all the same.
        group_desc: The name under which errors mention the group; equal on all members.
        pg_options, device_id: Accepted for code written for GPUs; nothing here depends on them.
        sort_ranks: False keeps the order of ``ranks``.

    Returns:
        A handle for ``group=``; ``GroupMember.NON_GROUP_MEMBER`` for those who are not in it.
    """
    joined = world()
    if backend is not None:
        transport_of(backend_named(backend))
    switch(use_local_synchronization, "new_group", "use_local_synchronization")
    members = _members(ranks, joined.size, switch(sort_ranks, "new_group", "sort_ranks"), "new_group")
    limit = seconds_of(timeout)
    STATE.made += 1
    if joined.rank not in members:
        return NON_GROUP_MEMBER
    return _made(joined, members, group_desc, limit)


def new_subgroups(
    group_size: int | None = None,
    group: Any = None,
    timeout: Timeout = None,
    backend: str | None = None,
    pg_options: Any = None,
    group_desc: str | None = None,
) -> tuple[ProcessGroup | None, list[ProcessGroup | int]]:
    """Creates subgroups of equal size, by default one per host.

    All processes of the world call it.

    Arguments:
        group_size: The size of each subgroup, by which the group's size must be divisible; None for the number of
            this job's processes on this host.
        group: The group to divide; None for the world.
        timeout, backend, pg_options, group_desc: See ``new_group``.

    Returns:
        The subgroup of the current process, and all subgroups, as ``new_group`` returns them.
    """
    member = _mine(group, "new_subgroups")
    size = member.local_size if group_size is None else integer(group_size, "new_subgroups", "group_size")
    if size <= 0:
        raise RuntimeUsageError(f"The arg 'group_size' ({size}) must be positive")
    if member.size < size:
        raise RuntimeUsageError(f"The arg 'group_size' ({size}) must not exceed the world size ({member.size})")
    if member.size % size:
        raise RuntimeUsageError(f"The world size ({member.size}) must be divisible by 'group_size={size}'")
    ranks = list(member.ranks)
    parts = [ranks[start : start + size] for start in range(0, len(ranks), size)]
    return new_subgroups_by_enumeration(parts, timeout, backend, pg_options, group_desc)


def new_subgroups_by_enumeration(
    ranks_per_subgroup_list: Sequence[Sequence[int]],
    timeout: Timeout = None,
    backend: str | None = None,
    pg_options: Any = None,
    group_desc: str | None = None,
) -> tuple[ProcessGroup | None, list[ProcessGroup | int]]:
    """Creates subgroups by dividing the world; they must not overlap, and need not hold every rank.

    All processes of the world call it.

    Arguments:
        ranks_per_subgroup_list: The members of each subgroup, ranks of the world.
        timeout, backend, pg_options, group_desc: See ``new_group``.

    Returns:
        The subgroup of the current process (None where it is in none), and all subgroups, as ``new_group`` returns
        them.
    """
    joined, what = world(), "new_subgroups_by_enumeration"
    parts = _disjoint(ranks_per_subgroup_list, joined.size, what, "ranks_per_subgroup_list")
    groups = [new_group(each, timeout, backend, pg_options, group_desc=group_desc) for each in parts]
    return next((each for each in groups if isinstance(each, ProcessGroup)), None), groups


def split_group(
    parent_pg: Any = None,
    split_ranks: Sequence[Sequence[int]] | None = None,
    timeout: Timeout = None,
    pg_options: Any = None,
    group_desc: str | None = None,
    backend: str | None = None,
) -> ProcessGroup | None:
    """Creates a new group out of a part of ``parent_pg``, on every backend.

    All members of the parent call it, with the same ``split_ranks``.

    Arguments:
        parent_pg: The group to split; None for the world.
        split_ranks: The members of each part, as ranks of the parent; parts must not overlap.
        timeout, group_desc: See ``new_group``.
        pg_options: Accepted for code written for GPUs; nothing here depends on it.
        backend: The parent's, if anything.

    Returns:
        The part that holds the current process; None where none does.
    """
    parent = _mine(parent_pg, "split_group")
    if backend is not None and backend_named(backend) != STATE.backend_name:
        raise RuntimeUsageError(
            f"split_group: Backend mismatch: parent has {STATE.backend_name!r}, requested {str(backend)!r}"
        )
    parts = _disjoint(split_ranks, parent.size, "split_group", "split_ranks")
    limit = seconds_of(timeout)
    STATE.made += len(parts)
    mine = next((each for each in parts if parent.rank in each), None)
    return None if mine is None else _made(parent, mine, group_desc, limit)


def shrink_group(
    ranks_to_exclude: list[int],
    group: Any = None,
    shrink_flags: int = SHRINK_DEFAULT,
    pg_options: Any = None,
) -> ProcessGroup:
    """Shrinks a group by excluding some of its ranks, dead or alive, on every backend; the rest are counted anew.

    Only those who stay call it, all with the same ranks; it waits for them. What the excluded have pending on the group
    ends with an error. Shrinking the world destroys all other groups of it.

    Arguments:
        ranks_to_exclude: Ranks of ``group``.
        group: The group to shrink; None for the world.
        shrink_flags: SHRINK_ABORT ends what is pending on the group first.
        pg_options: Accepted for code written for GPUs; nothing here depends on it.

    Returns:
        The new group, which replaces ``group``, and as the world takes its place.
    """
    gone = _excluded(ranks_to_exclude, shrink_flags)
    member = _mine(group, "shrink_group")
    _check_excluded(gone, member)
    if shrink_flags == SHRINK_ABORT:
        member.abort()
    try:
        smaller = member.exclude(gone)
    except UsageError as error:
        raise documented(error) from error.__cause__
    smaller.timeout = member.timeout
    try:
        smaller.barrier()
    except AiocollError:
        smaller.close()
        raise
    member.abort(f"it goes on without ranks {gone}")  # all who stay are here, so this tells those who do not
    if group is None or group is WORLD:
        STATE.follow(smaller)
        member.close()
        return WORLD
    STATE.groups.pop(id(group), None)
    member.close()
    return STATE.register(smaller)


def set_timeout(timeout: timedelta | float, group: Any = None) -> None:
    """Sets the default deadline of a group's calls, from the next one on.

    Arguments:
        timeout: A timedelta, or seconds.
        group: The group; None for the world.
    """
    limit = seconds_of(timeout)
    if limit is None:
        raise TypeUsageError("set_timeout: timeout must be a datetime.timedelta or seconds, not None")
    member = member_of(group)
    if member is not None:
        member.timeout = limit


def get_pg_count() -> int:
    """Returns how many groups have been made since init_process_group(), the world among them."""
    return STATE.made


def get_group_rank(group: Any, global_rank: int) -> int:
    """Translates a rank of the world into a rank of ``group``; ValueError where it is not a member."""
    member = _mine(group, "get_group_rank")
    rank = integer(global_rank, "get_group_rank", "global_rank")
    if rank not in member.ranks:
        raise RuntimeUsageError(f"Global rank {rank} is not part of group {group!r}, whose ranks are {member.ranks}")
    return member.ranks.index(rank)


def get_global_rank(group: Any, group_rank: int) -> int:
    """Translates a rank of ``group`` into a rank of the world; ValueError where the group has no such rank."""
    member = _mine(group, "get_global_rank")
    rank = integer(group_rank, "get_global_rank", "group_rank")
    if not 0 <= rank < member.size:
        raise RuntimeUsageError(f"Group rank {rank} is not part of group {group!r}, which has {member.size} ranks")
    return member.ranks[rank]


def get_process_group_ranks(group: Any = None) -> list[int]:
    """Returns the members of ``group`` as ranks of the world, ordered by their rank in the group; None is the world."""
    return list(_mine(group, "get_process_group_ranks").ranks)


# ------------------------------------------------------------------------------------------------ checks


def _mine(group: Any, what: str) -> SyncGroup:
    """The blocking group behind a handle of which I must be a member."""
    member = member_of(group)
    if member is None:
        raise RuntimeUsageError(
            f"{what}: Group {group!r} is not registered: rank {world().rank} is not a member of it, and only members "
            "know who is"
        )
    return member


def _made(parent: SyncGroup, members: tuple[int, ...], desc: str | None, limit: float | None) -> ProcessGroup:
    try:
        made = parent.subgroup(members, desc)
    except UsageError as error:
        raise documented(error) from error.__cause__
    if limit is not None:
        made.timeout = limit
    told("rank %d of %r is a member of group %r, ranks %s", parent.rank, parent.name, made.name, members)
    return STATE.register(made)


def _members(ranks: Any, size: int, sort_ranks: bool, what: str) -> tuple[int, ...]:
    if ranks is None:
        return tuple(range(size))
    if isinstance(ranks, str) or not isinstance(ranks, Iterable):
        raise TypeUsageError(f"{what}: ranks must be a list of ranks, got {type(ranks).__name__}")
    if not sort_ranks and isinstance(ranks, set | frozenset):
        raise RuntimeUsageError(f"{what}: ranks={ranks!r} has no order to keep: give a list with sort_ranks=False")
    members = [integer(each, what, "a rank") for each in ranks]
    if not members:
        raise RuntimeUsageError(f"{what}: cannot create empty group")
    wrong = [each for each in members if not 0 <= each < size]
    if wrong:
        raise RuntimeUsageError(
            f"{what}: array of ranks contains invalid rank, all ranks should be in range: [0, {size - 1}], "
            f"not {wrong[0]}"
        )
    if len(set(members)) != len(members):
        raise RuntimeUsageError(f"{what}: ranks should be unique, not {members}")
    return tuple(sorted(members)) if sort_ranks else tuple(members)


def _disjoint(parts: Any, size: int, what: str, name: str) -> list[tuple[int, ...]]:
    if parts is None or isinstance(parts, str) or not isinstance(parts, Iterable):
        raise RuntimeUsageError(f"{what}: {name} must be a list of lists of ranks, not {parts!r}")
    found = [_members(each if each is not None else (), size, True, what) for each in parts]
    if not found:
        raise RuntimeUsageError(f"{what}: The arg {name!r} cannot be empty")
    where: dict[int, tuple[int, ...]] = {}
    for part in found:
        for rank in part:
            if rank in where:
                raise RuntimeUsageError(
                    f"{what}: Rank {rank} has appeared in both subgroup {list(where[rank])} and {list(part)}"
                )
            where[rank] = part
    return found


def _excluded(ranks: Any, flags: Any) -> list[int]:
    if not isinstance(ranks, list):
        raise TypeUsageError(
            f"ranks_to_exclude must be a list, but got {type(ranks).__name__}. Example: [1, 3, 5] to exclude ranks "
            "1, 3, and 5."
        )
    if not ranks:
        raise RuntimeUsageError("ranks_to_exclude cannot be empty: shrink_group() excludes at least one rank")
    if isinstance(flags, bool) or flags not in (SHRINK_DEFAULT, SHRINK_ABORT):
        raise RuntimeUsageError(
            f"Invalid shrink_flags value: {flags}. Must be one of: SHRINK_DEFAULT ({SHRINK_DEFAULT}) or SHRINK_ABORT "
            f"({SHRINK_ABORT})."
        )
    return [integer(each, "shrink_group", f"ranks_to_exclude[{index}]") for index, each in enumerate(ranks)]


def _check_excluded(gone: list[int], member: SyncGroup) -> None:
    for rank in gone:
        if not 0 <= rank < member.size:
            raise RuntimeUsageError(
                f"shrink_group: Rank {rank} is out of bounds for group size {member.size}. Valid ranks are in range "
                f"[0, {member.size - 1}]."
            )
        if gone.count(rank) > 1:
            raise RuntimeUsageError(f"shrink_group: Duplicate rank {rank} found in ranks_to_exclude={gone}")
    if len(gone) == member.size:
        raise RuntimeUsageError(f"shrink_group: Cannot exclude all {member.size} ranks: at least one must remain")
    if member.rank in gone:
        raise RuntimeUsageError(
            f"shrink_group: Current rank {member.rank} is in the exclusion list and should not call shrink_group(): "
            "only those who stay do"
        )
