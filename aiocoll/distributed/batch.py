"""batch_isend_irecv and P2POp: several messages at once.

The rule: all operations are judged before the first one starts, and none of them waits for another.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from .arguments import require_tensor, root_of
from .messages import irecv, isend, receiving, sending
from .refusals import RuntimeUsageError
from .request import Request
from .state import WORLD, member_of


class P2POp:
    """One message of a batch: ``isend`` or ``irecv``, its tensor, and whom it goes to or comes from.

    Arguments:
        op: ``isend`` or ``irecv``.
        tensor: Tensor to send, or to fill.
        peer: Destination or source, a rank of the world; an ``irecv`` without one takes from anyone.
        group: The group in which the message travels; None for the world.
        tag: Meets the message with the same tag.
        group_peer: Destination or source in the group, instead of ``peer``.
    """

    __slots__ = ("group", "group_peer", "op", "peer", "tag", "tensor")
    op: Callable[..., Any]
    tensor: Any
    tag: int

    def __init__(
        self,
        op: Callable[..., Any],
        tensor: Any,
        peer: int | None = None,
        group: Any = None,
        tag: int = 0,
        group_peer: int | None = None,
    ) -> None:
        if op is not isend and op is not irecv:
            raise RuntimeUsageError(
                "Invalid ``op``. Expected ``op`` to be of type ``torch.distributed.isend`` or "
                f"``torch.distributed.irecv`` (here: those of aiocoll.distributed), not {op!r}"
            )
        self.op, self.tensor, self.tag = op, tensor, tag
        self.group: Any = WORLD if group is None else group
        member = member_of(self.group)
        require_tensor(tensor, "P2POp", -1 if member is None else member.rank)
        self.peer, self.group_peer = peer, group_peer
        if member is not None and not (op is irecv and peer is None and group_peer is None):
            self.group_peer = root_of(member, peer, group_peer, "P2POp", "peer")
            self.peer = member.ranks[self.group_peer]

    def __repr__(self) -> str:
        where = "to" if self.op is isend else "from"
        whom = "anyone" if self.peer is None else f"rank {self.peer}"
        return f"P2POp({self.op.__name__} {where} {whom}, tag={self.tag}, group={self.group!r})"


def batch_isend_irecv(p2p_op_list: list[P2POp]) -> list[Request]:
    """Sends and receives a batch of tensors asynchronously.

    The order of sends against receives does not matter; messages between the same two ranks in the same direction (with
    the same tag) meet in the order in which both sides list them. Messages to oneself work.

    Arguments:
        p2p_op_list: The messages, ``P2POp`` each, all in one group.

    Returns:
        One request per message, in the order of the list; an empty list for those who are not in the group.
    """
    if not isinstance(p2p_op_list, list) or not all(isinstance(each, P2POp) for each in p2p_op_list):
        raise RuntimeUsageError(
            "Invalid ``p2p_op_list``. Each op is expected to be of type ``torch.distributed.P2POp`` "
            "(here: a list of aiocoll.distributed.P2POp)"
        )
    if not p2p_op_list:
        return []
    group = p2p_op_list[0].group
    if any(each.group is not group for each in p2p_op_list):
        raise RuntimeUsageError("All ops need to use the same group.")
    member = member_of(group)
    if member is None:
        return []
    starts = []
    for number, each in enumerate(p2p_op_list):
        prepare = sending if each.op is isend else receiving
        what = f"batch_isend_irecv: {each.op.__name__} (number {number})"
        starts.append(prepare(member, each.tensor, None, each.group_peer, each.tag, what))
    return [start() for start in starts]
