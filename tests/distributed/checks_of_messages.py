"""Checks of the documented messages between two ranks; a part of check_documented_api.py."""

from __future__ import annotations

from typing import Any

import numpy as np
from checking import DTYPES, SHAPE, check, data, everyone, expect, me, raises

import aiocoll.distributed as dist


@check
def send_recv() -> None:
    for src in everyone():
        for dtype in DTYPES:
            if src == me():
                for dst in everyone():
                    if dst != src:
                        assert dist.send(data(src, dtype, salt=dst), dst) is None
            else:
                buffer = np.zeros(SHAPE, dtype)
                assert dist.recv(buffer, src) == src
                expect(buffer, data(src, dtype, salt=me()))


@check
def recv_from_anyone() -> None:
    if me() == 0:
        seen = []
        for _ in range(3 * (len(everyone()) - 1)):
            buffer = np.zeros(SHAPE)
            source = dist.recv(buffer)
            expect(buffer, data(source, salt=seen.count(source)))  # in the order in which each of them sent
            seen.append(source)
        assert sorted(seen) == sorted(list(everyone())[1:] * 3)
    else:
        for number in range(3):
            dist.send(data(me(), salt=number), dst=0)
    dist.barrier()


@check
def send_before_recv_on_all_ranks_at_every_size() -> None:
    size = dist.get_world_size()
    for count in (1, 10_000, 1_000_000):
        dist.send(data(me(), "u1", (count,)), (me() + 1) % size)
        buffer = np.zeros(count, "u1")
        dist.recv(buffer, (me() - 1) % size)
        expect(buffer, data((me() - 1) % size, "u1", (count,)))


@check
def isend_irecv() -> None:
    others = [rank for rank in everyone() if rank != me()]
    sends = [dist.isend(data(me(), dtype, salt=dst), dst) for dst in others for dtype in DTYPES]
    buffers = [np.zeros(SHAPE, dtype) for _ in others for dtype in DTYPES]
    places = [(src, dtype) for src in others for dtype in DTYPES]
    receives = [dist.irecv(buffer, src) for buffer, (src, _) in zip(buffers, places, strict=True)]
    for request in reversed(receives):
        assert request is not None and request.wait() is True and request.is_completed()
    for buffer, (src, dtype) in zip(buffers, places, strict=True):
        expect(buffer, data(src, dtype, salt=me()))
    for sent in sends:
        assert sent is not None
        sent.wait()
        assert sent.is_completed()


@check
def requests_progress_without_wait() -> None:
    size = dist.get_world_size()
    buffer = np.zeros(SHAPE)
    receive = dist.irecv(buffer, (me() - 1) % size)
    send = dist.isend(data(me()), (me() + 1) % size)
    assert receive is not None and send is not None
    while not (receive.is_completed() and send.is_completed()):
        pass
    expect(buffer, data((me() - 1) % size))


@check
def isend_irecv_to_oneself() -> None:
    buffer = np.zeros(SHAPE)
    receive, send = dist.irecv(buffer, me()), dist.isend(data(me()), me())
    assert receive is not None and send is not None
    send.wait()
    receive.wait()
    expect(buffer, data(me()))
    raises(RuntimeError, "cannot send tensor to process with same rank", lambda: dist.send(data(me()), me()))
    raises(RuntimeError, "cannot receive tensor from process with same rank", lambda: dist.recv(buffer, me()))


@check
def recv_of_a_message_that_does_not_fit() -> None:
    size = dist.get_world_size()
    right, left = (me() + 1) % size, (me() - 1) % size
    dist.isend(data(me(), shape=(7,)), right)
    dist.isend(data(me(), shape=(5,)), right)
    raises(RuntimeError, "", lambda: dist.recv(np.zeros(5), left))
    buffer = np.zeros(5)
    dist.recv(buffer, left)  # the first was consumed
    expect(buffer, data(left, shape=(5,)))


@check
def tags_keep_messages_apart() -> None:
    size = dist.get_world_size()
    right, left = (me() + 1) % size, (me() - 1) % size
    dist.isend(data(me(), salt=1), right, tag=1)
    dist.isend(data(me(), salt=2), right, tag=2)
    for tag in (2, 1):
        buffer = np.zeros(SHAPE)
        dist.recv(buffer, left, tag=tag)
        expect(buffer, data(left, salt=tag))


@check
def batches_of_messages_to_everybody() -> None:
    for count in (3, 200_000):
        buffers = [np.zeros(count) for _ in everyone()]
        ops = [dist.P2POp(dist.irecv, buffers[other], other) for other in everyone()]
        ops += [dist.P2POp(dist.isend, data(me(), "f8", (count,), other), other) for other in everyone()]
        for work in dist.batch_isend_irecv(ops):
            assert work.wait()
        for other, buffer in enumerate(buffers):
            expect(buffer, data(other, "f8", (count,), me()))


@check
def lists_of_objects() -> None:
    size = len(everyone())
    found: list[Any] | None = [None] * size if me() == size - 1 else None
    dist.gather_object({"rank": me()}, found, dst=size - 1)
    assert found is None or [each["rank"] for each in found] == list(everyone())
    box: list[Any] = [None]
    dist.scatter_object_list(box, [(me(), other) for other in everyone()], src=0)
    assert box == [(0, me())]
    if me() == 0:
        dist.send_object_list([1, "two", [3.0]], dst=size - 1)
    elif me() == size - 1:
        objects = [None] * 3
        assert dist.recv_object_list(objects) == 0 and objects == [1, "two", [3.0]]
