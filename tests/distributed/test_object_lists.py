"""gather_object, scatter_object_list, send_object_list, recv_object_list; roots in both numberings, for arrays too."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import aiocoll.distributed as dist
from aiocoll.errors import GroupBrokenError, MismatchError, SerializationError, UsageError
from tests.distributed.ranks import ranks


def thing(rank: int) -> Any:
    return {"rank": rank, "rows": [np.arange(rank + 1.0)], "name": "x" * rank, 7: (None, rank)}


def equal(left: Any, right: Any) -> bool:
    return (left["rank"], left["name"], left[7]) == (right["rank"], right["name"], right[7]) and (
        left["rows"][0] == right["rows"][0]
    ).all()


def test_gather_object_and_scatter_object_list() -> None:
    def program(rank: int) -> None:
        size = dist.get_world_size()
        for root in range(size):
            found: list[Any] | None = [None] * size if rank == root else None
            assert dist.gather_object(thing(rank), found, dst=root, weights_only=True) is None
            assert found is None or all(equal(each, thing(other)) for other, each in enumerate(found))
            output = ["old", "kept"]
            given = [thing(10 * root + other) for other in range(size)] if rank == root else ["never", "looked at"]
            assert dist.scatter_object_list(output, given, src=root, weights_only=True) is None
            assert equal(output[0], thing(10 * root + rank)) and output[1] == "kept"
        every: list[Any] = [None] * size
        dist.all_gather_object(every, rank, weights_only=False)
        first = [rank]
        dist.broadcast_object_list(first, device="cpu", weights_only=False)
        assert (every, first) == ([*range(size)], [0])
        dist.gather_object(rank, every if rank == 0 else [])

    ranks(3, program)


def test_send_object_list_and_recv_object_list() -> None:
    def program(rank: int) -> None:
        if rank == 0:
            dist.send_object_list([thing(1), "a", 5], dst=1, device="cpu", use_batch=True)
            dist.send_object_list([1, 2], 1)
            dist.send_object_list([1], group_dst=1, weights_only=True)
            return
        if rank == 2:
            dist.send_object_list([[]], 1)
            return
        objects: list[Any] = [None] * 3
        assert dist.recv_object_list(objects, src=0, device="cpu", use_batch=True) == 0
        assert equal(objects[0], thing(1)) and objects[1:] == ["a", 5]
        short = ["kept"]
        with pytest.raises(MismatchError, match="rank 0 sent 2 objects, rank 1 has a list of 1.*consumed"):
            dist.recv_object_list(short, 0)
        assert short == ["kept"]
        came = {}
        for _ in range(2):
            sender = dist.recv_object_list(short, weights_only=True)  # from anyone
            came[sender] = list(short)
        assert came == {0: [1], 2: [[]]}

    ranks(3, program)


def test_receives_from_anyone_fail_under_the_name_that_was_called() -> None:
    def program(rank: int) -> None:
        if rank == 0:
            for _ in range(2):
                with pytest.raises(SerializationError):
                    dist.send_object_list([object()], 1)
            with pytest.raises(GroupBrokenError, match="^recv"):
                dist.recv(np.zeros(1))
        else:
            for source in (0, None):
                with pytest.raises(SerializationError, match="^recv_object_list: rank 0 could not") as refused:
                    dist.recv_object_list([None], source)
                assert refused.value.collective == "recv_object_list"
            dist.group.WORLD.abort()
        receives: dict[str, Callable[[], Any]] = {
            "recv_object_list": lambda: dist.recv_object_list([None]),
            "recv": lambda: dist.recv(np.zeros(1)),
        }
        for name, receive in receives.items():
            with pytest.raises(GroupBrokenError, match=f"^{name}: group 'world' is broken") as broken:
                receive()
            assert broken.value.collective == name

    ranks(2, program)


def test_object_lists_in_groups_and_to_oneself() -> None:
    def program(rank: int) -> None:
        group = dist.new_group([1, 2])
        words: list[tuple[str, Callable[[], Any]]] = [
            ("destination rank should not be the same", lambda: dist.send_object_list([1], rank)),
            ("source rank should not be the same", lambda: dist.recv_object_list([1], rank)),
            ("needs dst", lambda: dist.send_object_list([1])),
            ("must be a list", lambda: dist.send_object_list("x", 1 - rank)),
        ]
        for match, use in words:
            with pytest.raises(UsageError, match=match):
                use()
        if rank == 0:
            return
        box = [None]
        if rank == 1:
            dist.send_object_list(["hello"], 2, group)
        else:
            assert dist.recv_object_list(box, None, group) == 1 and box == ["hello"]

    ranks(3, program)


def test_lists_and_objects_that_are_wrong_on_one_rank_are_refused_for_all() -> None:
    def program(rank: int) -> None:
        def refused(kind: type[Exception], words: str, wrong: Callable[[], Any], right: Callable[[], Any]) -> None:
            with pytest.raises(kind, match=words if rank == 0 else "rank 0"):
                (wrong if rank == 0 else right)()
            dist.barrier()

        places = [None, None]
        objects: Any = ["a", "b"]
        one: Any = [None]
        refused(
            RuntimeError,
            "has 1 places on rank 0",
            lambda: dist.gather_object(1, one, 0),
            lambda: dist.gather_object(1, None, 0),
        )
        refused(
            RuntimeError,
            "only to the destination",
            lambda: dist.gather_object(1, places, 1),
            lambda: dist.gather_object(1, places, 1),
        )
        refused(
            RuntimeError,
            "is empty",
            lambda: dist.scatter_object_list([], objects),
            lambda: dist.scatter_object_list(one, None),
        )
        refused(
            RuntimeError,
            "required argument on the source",
            lambda: dist.scatter_object_list(one),
            lambda: dist.scatter_object_list(one),
        )
        refused(
            SerializationError,
            "object",
            lambda: dist.gather_object(object(), None, 1),
            lambda: dist.gather_object(1, places, 1),
        )
        refused(
            SerializationError,
            "object",
            lambda: dist.scatter_object_list(one, [1, object()]),
            lambda: dist.scatter_object_list(one),
        )
        assert places == [None, None] and one == [None]

    ranks(2, program)


def _broadcast(mine: int, chief: int, **where: Any) -> Any:
    x = np.array([mine])
    dist.broadcast(x, **_source(where))
    return x.tolist()


def _reduce(mine: int, chief: int, **where: Any) -> Any:
    x = np.array([mine])
    dist.reduce(x, **_destination(where))
    return x.tolist() if mine == chief else None


def _gather(mine: int, chief: int, **where: Any) -> Any:
    outputs = [np.zeros(1, int) for _ in range(2)] if mine == chief else None
    dist.gather(np.array([mine]), outputs, **_destination(where))
    return [int(each[0]) for each in outputs] if outputs else None


def _gather_single(mine: int, chief: int, **where: Any) -> Any:
    output = np.zeros(2, int) if mine == chief else None
    dist.gather_single(np.array([mine]), output, **_destination(where))
    return None if output is None else output.tolist()


def _scatter(mine: int, chief: int, **where: Any) -> Any:
    x = np.zeros(1, int)
    dist.scatter(x, [np.array([chief * 10 + k]) for k in range(2)] if mine == chief else None, **_source(where))
    return x.tolist()


def _broadcast_objects(mine: int, chief: int, **where: Any) -> Any:
    box = [mine]
    dist.broadcast_object_list(box, **_source(where))
    return box


def _gather_objects(mine: int, chief: int, **where: Any) -> Any:
    found = [None] * 2 if mine == chief else None
    dist.gather_object(mine, found, **_destination(where))
    return found


def _scatter_objects(mine: int, chief: int, **where: Any) -> Any:
    box = [None]
    dist.scatter_object_list(box, [chief * 10 + k for k in range(2)] if mine == chief else None, **_source(where))
    return box


def _source(where: dict[str, Any]) -> dict[str, Any]:
    return {{"root": "src", "group_root": "group_src"}.get(name, name): value for name, value in where.items()}


def _destination(where: dict[str, Any]) -> dict[str, Any]:
    return {{"root": "dst", "group_root": "group_dst"}.get(name, name): value for name, value in where.items()}


ROOTED: dict[str, Callable[..., Any]] = {
    "broadcast": _broadcast,
    "reduce": _reduce,
    "gather": _gather,
    "gather_single": _gather_single,
    "scatter": _scatter,
    "broadcast_object_list": _broadcast_objects,
    "gather_object": _gather_objects,
    "scatter_object_list": _scatter_objects,
}


@pytest.mark.parametrize("sort_ranks", [True, False])
def test_p3_roots_mean_the_same_for_arrays_and_objects(sort_ranks: bool) -> None:
    """In the group of ranks 1 and 3 every rooted call takes ranks of the world, and ranks of the group by their own
    keyword; a root that is left out is the group's first; one that is no member is refused naming both."""

    def program(rank: int) -> None:
        members = [1, 3] if sort_ranks else [3, 1]
        group = dist.new_group(members, sort_ranks=sort_ranks)
        if rank not in members:
            for call in ROOTED.values():
                assert call(rank, 1, root=1, group=group) in ([rank], [0], [None], None, [0, 0], [None] * 2)
            return
        place = members.index(rank)
        for name, call in ROOTED.items():
            for at, root in enumerate(members):
                wanted: Any = {
                    "broadcast": [root],
                    "broadcast_object_list": [root],
                    "reduce": [4] if rank == root else None,
                    "scatter": [root * 10 + place],
                    "scatter_object_list": [root * 10 + place],
                }.get(name, members if rank == root else None)
                assert call(rank, root, root=root, group=group) == wanted, (name, root)
                assert call(rank, root, group_root=at, group=group) == wanted, (name, at)
                if at == 0 and name not in ("broadcast", "reduce"):
                    assert call(rank, root, group=group) == wanted, name
            for where in ({"root": 0}, {"root": 2}, {"group_root": 2}, {"root": 1, "group_root": 0}):
                with pytest.raises(RuntimeError, match=r"not member of group|group rank is invalid|not both") as caught:
                    call(rank, -1, group=group, **where)
                assert isinstance(caught.value, UsageError)

    ranks(4, program)
