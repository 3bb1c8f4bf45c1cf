"""all_gather_object and broadcast_object_list: plain Python data, into the caller's list.

The rule: what travels is what ``aiocoll``'s object calls take; a list is filled only when everything has arrived.
"""

from __future__ import annotations

from typing import Any

from ..errors import MismatchError, UsageError
from .arguments import root_of
from .refusals import RuntimeUsageError, TypeUsageError
from .request import refused, run
from .state import WORLD, member_of


def all_gather_object(object_list: list[Any], obj: Any, group: Any = WORLD) -> None:
    """Gathers objects from the whole group into a list.

    Arguments:
        object_list: Output list, one place per member of the group.
        obj: The object of the current process: plain data (see the manual on objects).
        group: Group of the collective.
    """
    member = member_of(group)
    if member is None:
        return
    try:
        _require_list(object_list, "all_gather_object", "object_list")
        if len(object_list) != member.size:
            raise RuntimeUsageError(
                f"all_gather_object: object_list has {len(object_list)} places on rank {member.rank}, the group has "
                f"{member.size} members"
            )
    except UsageError as error:
        raise refused(member, "all_gather_object", error) from error.__cause__
    object_list[:] = run(member, lambda g: g.all_gather_object(obj))


def broadcast_object_list(
    object_list: list[Any],
    src: int | None = None,
    group: Any = WORLD,
    device: Any = None,
    group_src: int | None = None,
) -> None:
    """Broadcasts the objects in ``object_list`` to the whole group.

    Arguments:
        object_list: On ``src`` the objects to send; elsewhere a list of the same length, which is overwritten.
        src: Source rank, a rank of the world; 0 when left out.
        group: Group of the collective.
        device: Accepted for code written for GPUs; nothing here depends on it.
        group_src: Source rank in the group, instead of ``src``.
    """
    member = member_of(group)
    if member is None:
        return
    try:
        _require_list(object_list, "broadcast_object_list", "object_list")
        default = 0 if src is None and group_src is None else src
        root = root_of(member, default, group_src, "broadcast_object_list", "src")
    except UsageError as error:
        raise refused(member, "broadcast_object", error) from error.__cause__
    sent = list(object_list) if root == member.rank else None
    received = run(member, lambda g: g.broadcast_object(sent, root))
    if len(received) != len(object_list):
        raise MismatchError(
            f"broadcast_object_list on group {member.name!r}: rank {root} sent {len(received)} objects, rank "
            f"{member.rank} has a list of {len(object_list)}, which was left as it is"
        )
    if root != member.rank:
        object_list[:] = received


def _require_list(given: Any, what: str, name: str) -> None:
    if not isinstance(given, list):
        raise TypeUsageError(f"{what}: {name} must be a list, got {type(given).__name__}")
