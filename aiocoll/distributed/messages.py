"""send, recv, isend, irecv: one tensor from one rank to another.

The rule: only count and dtype must agree, so flat views travel; sources and destinations are ranks of the world.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from typing import Any

from ..errors import AiocollError, MismatchError
from ..sync import SyncGroup
from .arguments import Output, input_of, integer, root_of
from .refusals import RuntimeUsageError, renamed
from .request import Request, run
from .state import WORLD, member_of


def send(tensor: Any, dst: int | None = None, group: Any = WORLD, tag: int = 0, group_dst: int | None = None) -> None:
    """Sends a tensor synchronously.

    Arguments:
        tensor: Tensor to send; it may be changed when the call returns.
        dst: Destination rank, a rank of the world.
        group: The group in which the message travels.
        tag: Meets the receive with the same tag.
        group_dst: Destination rank in the group, instead of ``dst``.
    """
    member = member_of(group)
    if member is None:
        return
    data, peer, tag = _outgoing(member, tensor, dst, group_dst, tag, "send")
    if peer == member.rank:
        raise RuntimeUsageError(
            f"cannot send tensor to process with same rank: rank {peer} would wait for itself; isend can"
        )
    run(member, lambda g: g.send(data, peer, tag))


def recv(
    tensor: Any,
    src: int | None = None,
    group: Any = WORLD,
    tag: int = 0,
    group_src: int | None = None,
) -> int:
    """Receives a tensor synchronously.

    Arguments:
        tensor: Tensor to fill with received data.
        src: Source rank, a rank of the world. Will receive from any process if unspecified.
        group: The group in which the message travels.
        tag: Takes messages with this tag.
        group_src: Source rank in the group, instead of ``src``.

    Returns:
        Sender rank, a rank of the world; -1 when I am not in the group.
    """
    member = member_of(group)
    if member is None:
        return -1
    out, peer, tag = _incoming(member, tensor, src, group_src, tag, "recv")
    if peer == member.rank:
        raise RuntimeUsageError(
            f"cannot receive tensor from process with same rank: rank {peer} would wait for itself; irecv can"
        )
    return run(member, lambda g: _receive(member, g, out, peer, tag))


def isend(
    tensor: Any, dst: int | None = None, group: Any = WORLD, tag: int = 0, group_dst: int | None = None
) -> Request | None:
    """Sends a tensor asynchronously; it must not be changed until the request is completed.

    Arguments are those of ``send``; sending to oneself works. Returns a distributed request object.
    """
    member = member_of(group)
    return None if member is None else sending(member, tensor, dst, group_dst, tag, "isend")()


def irecv(
    tensor: Any,
    src: int | None = None,
    group: Any = WORLD,
    tag: int = 0,
    group_src: int | None = None,
) -> Request | None:
    """Receives a tensor asynchronously; what it holds is undefined until the request is completed.

    Arguments are those of ``recv``, any source included; the request's ``source_rank()`` tells who it was.
    """
    member = member_of(group)
    return None if member is None else receiving(member, tensor, src, group_src, tag, "irecv")()


def sending(
    member: SyncGroup, tensor: Any, dst: int | None, group_dst: int | None, tag: int, what: str
) -> Callable[[], Request]:
    """An isend whose arguments are right; calling it starts it."""
    data, peer, tag = _outgoing(member, tensor, dst, group_dst, tag, what)
    return lambda: Request(member.begin(lambda g: g.send(data, peer, tag), what), member)


def receiving(
    member: SyncGroup, tensor: Any, src: int | None, group_src: int | None, tag: int, what: str
) -> Callable[[], Request]:
    """An irecv whose arguments are right; calling it starts it."""
    out, peer, tag = _incoming(member, tensor, src, group_src, tag, what)

    def start() -> Request:
        work = member.begin(lambda g: _receive(member, g, out, peer, tag), what)
        return Request(work, member, (tensor,), receives=True)

    return start


def _outgoing(
    member: SyncGroup, tensor: Any, dst: int | None, group_dst: int | None, tag: int, what: str
) -> tuple[Any, int, int]:
    peer = root_of(member, dst, group_dst, what, "dst")
    return input_of(tensor, what, member.rank), peer, _tag(tag, what)


def _incoming(
    member: SyncGroup, tensor: Any, src: int | None, group_src: int | None, tag: int, what: str
) -> tuple[Output, int | None, int]:
    anyone = src is None and group_src is None
    peer = None if anyone else root_of(member, src, group_src, what, "src")
    return Output(tensor, what, member.rank), peer, _tag(tag, what)


def _tag(tag: Any, what: str) -> int:
    number = integer(tag, what, "tag")
    if number < 0:
        raise RuntimeUsageError(f"{what}: tag={number}: tags count from 0")
    return number


def _receive(member: SyncGroup, g: Any, out: Output, peer: int | None, tag: int) -> Coroutine[Any, Any, int]:
    """Called where the loop is, so that the receive is posted at once; the coroutine gives the sender's world rank."""
    if peer is None:
        return _from_anyone(g.recv_message(None, tag), out, member)
    return _from_peer(g.recv(peer, tag, out=out.flat), out, member.ranks[peer])


async def _from_peer(arriving: Any, out: Output, source: int) -> int:
    try:
        await arriving
    except MismatchError as error:
        raise MismatchError(f"tensor sizes do not match: {error}") from error
    out.settle()
    return source


async def _from_anyone(arriving: Any, out: Output, member: SyncGroup) -> int:
    try:
        message = await arriving
    except AiocollError as error:
        renamed(error, "recv_message", "recv")
        raise
    data, flat = message.data, out.flat
    if data.size != flat.size or data.dtype.newbyteorder("=") != flat.dtype.newbyteorder("="):
        raise MismatchError(
            f"recv on group {member.name!r}: tensor sizes do not match: rank {message.source} sent {data.size} "
            f"elements of {data.dtype}, rank {member.rank} has room for {flat.size} of {flat.dtype}; "
            "the message is consumed"
        )
    out.take(data)
    source: int = member.ranks[message.source]
    return source
