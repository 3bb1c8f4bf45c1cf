"""Plain Python data, into the caller's list: the object collectives, send_object_list, recv_object_list.

The rule: what travels is what ``aiocoll``'s object calls take; a list is filled only when everything has arrived.
``device``, ``use_batch`` and ``weights_only`` are accepted for code written for torch: nothing here lies on devices,
and what is taken is plain data in any case, unless ``AIOCOLL_ALLOW_PICKLE`` says more.
"""

from __future__ import annotations

from typing import Any

from ..errors import AiocollError, MismatchError
from ..sync import SyncGroup
from .arguments import root_of, root_or_first
from .refusals import RuntimeUsageError, TypeUsageError, renamed
from .request import judging, run
from .state import WORLD, member_of


def all_gather_object(object_list: list[Any], obj: Any, group: Any = WORLD, weights_only: bool = False) -> None:
    """Gathers objects from the whole group into a list.

    Arguments:
        object_list: Output list, one place per member of the group.
        obj: The object of the current process: plain data (see the manual on objects).
        group: Group of the collective.
        weights_only: Accepted; nothing here depends on it.
    """
    member = member_of(group)
    if member is None:
        return
    with judging(member, "all_gather_object"):
        _require_places(object_list, member, "all_gather_object", "object_list")
    object_list[:] = run(member, lambda g: g.all_gather_object(obj))


def broadcast_object_list(
    object_list: list[Any],
    src: int | None = None,
    group: Any = WORLD,
    device: Any = None,
    group_src: int | None = None,
    weights_only: bool = False,
) -> None:
    """Broadcasts the objects in ``object_list`` to the whole group.

    Arguments:
        object_list: On ``src`` the objects to send; elsewhere a list of the same length, which is overwritten.
        src: Source rank, a rank of the world; 0 when left out.
        group: Group of the collective.
        device, weights_only: Accepted; nothing here depends on them.
        group_src: Source rank in the group, instead of ``src``.
    """
    member = member_of(group)
    if member is None:
        return
    with judging(member, "broadcast_object"):
        _require_list(object_list, "broadcast_object_list", "object_list")
        root = root_or_first(member, src, group_src, "broadcast_object_list", "src")
    sent = list(object_list) if root == member.rank else None
    received = run(member, lambda g: g.broadcast_object(sent, root))
    if len(received) != len(object_list):
        raise MismatchError(
            f"broadcast_object_list on group {member.name!r}: rank {root} sent {len(received)} objects, rank "
            f"{member.rank} has a list of {len(object_list)}, which was left as it is"
        )
    if root != member.rank:
        object_list[:] = received


def gather_object(
    obj: Any,
    object_gather_list: list[Any] | None = None,
    dst: int | None = None,
    group: Any = None,
    group_dst: int | None = None,
    weights_only: bool = False,
) -> None:
    """Gathers objects from the whole group in a single process.

    Arguments:
        obj: The object of the current process: plain data (see the manual on objects).
        object_gather_list: On ``dst`` the output list, one place per member of the group; None, or empty, elsewhere.
        dst: Destination rank, a rank of the world; 0 when left out.
        group: Group of the collective; None for the world.
        group_dst: Destination rank in the group, instead of ``dst``.
        weights_only: Accepted; nothing here depends on it.
    """
    member = member_of(group)
    if member is None:
        return
    what = "gather_object"
    with judging(member, what):
        root = root_or_first(member, dst, group_dst, what, "dst")
        if root != member.rank and object_gather_list:
            raise RuntimeUsageError(
                f"{what}: a non-empty object_gather_list can be given only to the destination: this is rank "
                f"{member.rank} of the group, dst is rank {root}"
            )
        if root == member.rank:
            if object_gather_list is None:
                raise RuntimeUsageError(
                    f"{what}: object_gather_list is a required argument on the destination: rank {root} of the group "
                    f"needs a list of {member.size} places"
                )
            _require_places(object_gather_list, member, what, "object_gather_list")
    found = run(member, lambda g: g.gather_object(obj, root))
    if object_gather_list is not None and found is not None:
        object_gather_list[:] = found


def scatter_object_list(
    scatter_object_output_list: list[Any],
    scatter_object_input_list: list[Any] | None = None,
    src: int | None = None,
    group: Any = None,
    group_src: int | None = None,
    weights_only: bool = False,
) -> None:
    """Scatters a list of objects to the whole group.

    Arguments:
        scatter_object_output_list: A list that is not empty, whose first place gets the object for this rank.
        scatter_object_input_list: On ``src`` the objects, one per member of the group; elsewhere ignored.
        src: Source rank, a rank of the world; 0 when left out.
        group: Group of the collective; None for the world.
        group_src: Source rank in the group, instead of ``src``.
        weights_only: Accepted; nothing here depends on it.
    """
    member = member_of(group)
    if member is None:
        return
    what = "scatter_object_list"
    with judging(member, "scatter_object"):
        root = root_or_first(member, src, group_src, what, "src")
        _require_list(scatter_object_output_list, what, "scatter_object_output_list")
        if not scatter_object_output_list:
            raise RuntimeUsageError(
                f"{what}: scatter_object_output_list on rank {member.rank} is empty; its first place gets the object"
            )
        if root == member.rank:
            if scatter_object_input_list is None:
                raise RuntimeUsageError(
                    f"{what}: scatter_object_input_list is a required argument on the source: rank {root} of the group "
                    f"needs a list of {member.size} objects"
                )
            _require_places(scatter_object_input_list, member, what, "scatter_object_input_list")
    sent = scatter_object_input_list if root == member.rank else None
    scatter_object_output_list[0] = run(member, lambda g: g.scatter_object(sent, root))


def send_object_list(
    object_list: list[Any],
    dst: int | None = None,
    group: Any = None,
    device: Any = None,
    group_dst: int | None = None,
    use_batch: bool = False,
    weights_only: bool = False,
) -> None:
    """Sends the objects in ``object_list`` synchronously, as one message.

    Arguments:
        object_list: The objects to send: plain data (see the manual on objects).
        dst: Destination rank, a rank of the world.
        group: The group in which the message travels; None for the world.
        group_dst: Destination rank in the group, instead of ``dst``.
        device, use_batch, weights_only: Accepted; nothing here depends on them.
    """
    member = member_of(group)
    if member is None:
        return
    what = "send_object_list"
    _require_list(object_list, what, "object_list")
    peer = root_of(member, dst, group_dst, what, "dst")
    _not_myself(peer, member, what, "destination")
    run(member, lambda g: g.send_object(object_list, peer))


def recv_object_list(
    object_list: list[Any],
    src: int | None = None,
    group: Any = None,
    device: Any = None,
    group_src: int | None = None,
    use_batch: bool = False,
    weights_only: bool = False,
) -> int:
    """Receives what ``send_object_list`` sends, synchronously.

    Arguments:
        object_list: A list of the length of the sender's, which is overwritten.
        src: Source rank, a rank of the world. Will receive from any process if unspecified.
        group: The group in which the message travels; None for the world.
        group_src: Source rank in the group, instead of ``src``.
        device, use_batch, weights_only: Accepted; nothing here depends on them.

    Returns:
        Sender rank, a rank of the world; -1 when I am not in the group.
    """
    member = member_of(group)
    if member is None:
        return -1
    what = "recv_object_list"
    _require_list(object_list, what, "object_list")
    peer = None if src is None and group_src is None else root_of(member, src, group_src, what, "src")
    _not_myself(peer, member, what, "source")
    try:
        message = run(member, lambda g: g.recv_object_message(peer, 0))
    except AiocollError as error:
        renamed(error, "recv_object_message", what)
        raise
    if not isinstance(message.data, list) or len(message.data) != len(object_list):
        count = f"{len(message.data)} objects" if isinstance(message.data, list) else "an object that is no list"
        raise MismatchError(
            f"{what} on group {member.name!r}: rank {message.source} sent {count}, rank {member.rank} has a list of "
            f"{len(object_list)}, which was left as it is; the message is consumed"
        )
    object_list[:] = message.data
    sender: int = member.ranks[message.source]
    return sender


def _not_myself(peer: int | None, member: SyncGroup, what: str, role: str) -> None:
    if peer == member.rank:
        raise RuntimeUsageError(
            f"{what}: Invalid {role} rank: {role} rank should not be the same as the rank of the current process "
            f"({peer} in group {member.name!r})"
        )


def _require_places(given: Any, member: SyncGroup, what: str, name: str) -> None:
    _require_list(given, what, name)
    if len(given) != member.size:
        raise RuntimeUsageError(
            f"{what}: {name} has {len(given)} places on rank {member.rank}, the group has {member.size} members"
        )


def _require_list(given: Any, what: str, name: str) -> None:
    if not isinstance(given, list):
        raise TypeUsageError(f"{what}: {name} must be a list, got {type(given).__name__}")
