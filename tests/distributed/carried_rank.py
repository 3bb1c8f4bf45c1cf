"""One rank of a world whose arrays another library moves; says what every documented call gave, as a line of JSON."""

from __future__ import annotations

import json
import os
import signal
import sys
import warnings
from typing import Any

import numpy as np

import aiocoll.distributed as dist

warnings.simplefilter("error")
KINDS = "?bHlQefdFD"
OPS = ("SUM", "PRODUCT", "MIN", "MAX", "AVG", "BAND", "BOR", "BXOR")


def plain(x: Any) -> Any:
    """An array as JSON, with its dtype."""
    kind = {"c": "D", "f": "d"}.get(x.dtype.kind, "Q" if x.dtype.kind == "u" else "q")
    return [x.dtype.str, repr(x.astype(kind).tolist())]


def everything(backend: str) -> dict[str, Any]:
    dist.init_process_group(backend, timeout=60)
    rank, size = dist.get_rank(), dist.get_world_size()
    said: dict[str, Any] = {"rank": rank, "size": size, "backend": dist.get_backend()}
    reductions(said, rank)
    movement(said, rank, size)
    groups(said, rank)
    refusals(said, rank)
    said["carried"] = carried()
    if backend == "gloo":
        death(said, rank)
    dist.destroy_process_group()
    said["left"] = dist.is_initialized()
    return said


def carried() -> list[str]:
    """Which algorithms of the world went through a library."""
    lineage = dist.group.WORLD.member().asynchronous._connection.lineage
    return [] if lineage.carrier is None else sorted(lineage.carrier.collectives)


def reductions(said: dict[str, Any], rank: int) -> None:
    for kind in KINDS:
        for name in OPS:
            x = ((np.arange(9) * 3 + 5 * rank) % 7 - 2).astype(kind)
            if kind in "efd" and name in ("MIN", "MAX"):
                x[2 + rank] = np.nan
            try:
                dist.all_reduce(x, getattr(dist.ReduceOp, name))
            except RuntimeError as error:
                said[f"{kind} {name}"] = "refused" if "does not work on" in str(error) else str(error)
            else:
                said[f"{kind} {name}"] = plain(x)
    x = np.arange(4000, dtype="i8") * (rank + 1)
    dist.reduce(x, 2)
    said["reduce"] = plain(x[::500])
    grid = np.arange(24.0).reshape(4, 6) + rank
    dist.all_reduce(grid.T[::2])
    said["strided"] = plain(grid)


def movement(said: dict[str, Any], rank: int, size: int) -> None:
    x = np.arange(30_000.0) + 100 * rank
    dist.broadcast(x, 1)
    said["broadcast"] = plain(x[:3])
    for rows in (4, 30_000):
        into = [np.zeros(rows + 10 * source, "i4") for source in range(size)]
        dist.all_gather(into, np.arange(rows + 10 * rank, dtype="i4") + 1000 * rank)
        said[f"all_gather {rows}"] = [plain(each[-3:]) for each in into]
        into = [np.zeros((rows, 2), "c8") for _ in range(size)]
        dist.all_gather(into, np.full((rows, 2), rank + 1j, "c8"))
        said[f"all_gather even {rows}"] = [plain(each[:2]) for each in into]
    into = [np.zeros(7 * source, "u1") for source in range(size)]
    dist.gather(np.arange(7 * rank, dtype="u1") + rank, into if rank == 0 else None, 0)
    said["gather"] = [plain(each) for each in into]
    part = np.zeros((2, 2), "f4")
    dist.scatter(part, [np.full((2, 2), 5.0 + each, "f4") for each in range(size)] if rank == 2 else None, 2)
    said["scatter"] = plain(part)
    dist.barrier()
    handles = [dist.all_reduce(np.full(2000, 1.0 + rank), async_op=True) for _ in range(30)]
    said["async"] = [handle.wait() for handle in handles if handle is not None]
    objects: list[Any] = [None] * size
    dist.all_gather_object(objects, {"rank": rank, "blob": "x" * (100_000 if rank == 1 else 3)})
    said["objects"] = [[each["rank"], len(each["blob"])] for each in objects]
    if rank == 0:
        dist.send(np.arange(5.0), 1, tag=4)
    elif rank == 1:
        into = [np.zeros(5)]
        said["recv"] = [dist.recv(into[0], tag=4), plain(into[0])]
    locals_ = [np.full(3, rank + 1.0), np.full(3, 10.0 * rank)]
    dist.all_reduce_multigpu(locals_)
    said["multigpu"] = [plain(each) for each in locals_]


def groups(said: dict[str, Any], rank: int) -> None:
    pair = dist.new_group([2, 0])
    x = np.arange(3000.0) * (rank + 1)
    answer = dist.all_reduce(x, group=pair)
    said["pair"] = [answer, plain(x[:4]), dist.get_rank(pair)]
    dist.broadcast(x, 2, group=pair)
    said["pair broadcast"] = plain(x[:4])


def refusals(said: dict[str, Any], rank: int) -> None:
    for name, make in (
        ("dtype", lambda: dist.all_reduce(np.zeros(3, "M8[s]"))),
        ("one rank", lambda: dist.all_reduce(np.zeros(3) if rank else "slip")),
    ):
        try:
            make()
        except RuntimeError as error:
            said[name] = [type(error).__name__, "rank 0" in str(error) or name == "dtype"]
        except TypeError as error:
            said[name] = [type(error).__name__, "rank 0" in str(error)]
    x = np.full(5, 2.0**rank)
    dist.all_reduce(x)  # the group lives
    said["after"] = plain(x)
    twin = dist.new_group([0, 1, 2])
    try:
        dist.all_reduce(np.zeros(4 + (rank == 1)), group=twin)
    except RuntimeError as error:
        said["mismatch"] = type(error).__name__


def death(said: dict[str, Any], rank: int) -> None:
    """Rank 2 dies under the others' hands."""
    x = np.ones(1000)
    twin = dist.new_group([0, 1, 2])
    if rank == 2:
        print(json.dumps(said), flush=True)
        os.kill(os.getpid(), signal.SIGKILL)
    try:
        while True:
            dist.all_reduce(x, group=twin)
    except ConnectionError as error:
        said["lost"] = [type(error).__name__, error.rank]


if __name__ == "__main__":
    print(json.dumps(everything(sys.argv[1])), flush=True)
