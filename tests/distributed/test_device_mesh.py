"""DeviceMesh: ranks as an array, its parts by name, and the groups along its dimensions."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import aiocoll.distributed as dist
from aiocoll.distributed.device_mesh import DeviceMesh, init_device_mesh
from aiocoll.errors import UsageError
from tests.distributed.fake_group import FakeGroup
from tests.distributed.ranks import ranks


def summed(group: Any) -> float:
    x = np.array([10.0 ** dist.get_rank()])
    dist.all_reduce(x, group=group)
    return float(x[0])


def test_a_mesh_of_two_dimensions() -> None:
    def program(rank: int) -> None:
        mesh = init_device_mesh("cpu", (2, 3), mesh_dim_names=("dp", "tp"))
        row, column = divmod(rank, 3)
        assert (mesh.device_type, mesh.ndim, mesh.shape, mesh.size()) == ("cpu", 2, (2, 3), 6)
        assert (mesh.size(0), mesh.size(1), mesh.size("tp")) == (2, 3, 3)
        assert mesh.mesh.tolist() == [[0, 1, 2], [3, 4, 5]] and mesh.mesh_dim_names == ("dp", "tp")
        assert mesh.get_coordinate() == (row, column) and mesh.get_rank() == rank
        assert (mesh.get_local_rank("dp"), mesh.get_local_rank(1), mesh.get_local_rank(-1)) == (row, column, column)
        down, along = mesh.get_all_groups()
        assert down is mesh.get_group("dp") and along is mesh.get_group(1)
        assert dist.get_process_group_ranks(down) == [column, column + 3]
        assert summed(down) == 10.0**column + 10.0 ** (column + 3)
        assert summed(along) == sum(10.0 ** (3 * row + each) for each in range(3))
        part = mesh["tp"]
        assert part.get_group() is along and part.get_local_rank() == column == part.get_coordinate()[0]
        assert part.mesh.tolist() == [3 * row, 3 * row + 1, 3 * row + 2] and part.shape == (3,)
        assert mesh["dp", "tp"] is mesh and mesh["dp"]["dp"] == mesh["dp"]
        turned = mesh["tp", "dp"]
        assert turned.mesh.tolist() == [[0, 3], [1, 4], [2, 5]] and turned.get_coordinate() == (column, row)
        assert turned.get_group(0) is along
        assert hash(mesh["tp"]) == hash(part) and (part == mesh["dp"]) is False and part != 3
        assert "dp=2, tp=3" in repr(mesh)
        with mesh as same:
            assert same is mesh
        for words, call in (("mesh_dim", mesh.get_group), ("mesh_dim", mesh.get_local_rank)):
            with pytest.raises(RuntimeError, match=words):
                call()
        for call in (lambda: mesh["pp"], lambda: mesh["dp", "pp"], lambda: mesh.get_group("pp")):
            with pytest.raises(KeyError, match="pp|dp") as caught:
                call()
            assert isinstance(caught.value, UsageError) and not str(caught.value).startswith(("'", '"'))
        with pytest.raises(RuntimeError, match="has 2 dimensions"):
            mesh.size(2)

    ranks(6, program)


def test_three_dimensions_and_a_flat_one() -> None:
    def program(rank: int) -> None:
        mesh = init_device_mesh("cpu", (2, 2, 2), mesh_dim_names=("dp", "pp", "cp"), backend_override={"dp": "tcp"})
        dp, pp, cp = mesh.get_coordinate()
        part = mesh["dp", "cp"]
        expected = [[each + 2 * pp for each in row] for row in ([0, 1], [4, 5])]
        assert part.mesh.tolist() == expected and part.get_coordinate() == (dp, cp)
        flat = part._flatten()
        members = sum(expected, [])
        assert flat.mesh_dim_names == ("dp_cp",) and flat.mesh.tolist() == members
        assert mesh["dp_cp"] is flat is part._flatten() and mesh.get_group("dp_cp") is flat.get_group()
        assert flat.get_local_rank() == members.index(rank)
        assert summed(flat.get_group()) == sum(10.0**each for each in members)
        everything = mesh._flatten("all")
        assert everything.get_group() is dist.group.WORLD and everything._flatten("all") is everything
        with pytest.raises(RuntimeError, match="already exists"):
            mesh["pp"]._flatten("dp")
        with pytest.raises(RuntimeError, match="'?all has been created before, of other ranks"):
            mesh["dp", "pp"]._flatten("all")
        again = flat._flatten("rows")  # a line of ranks is flat: its group serves under any name
        assert again.get_group() is flat.get_group() and mesh["rows"] is again and again.mesh.tolist() == members

    ranks(8, program)


def test_a_mesh_of_some_ranks_in_an_order_of_its_own() -> None:
    def program(rank: int) -> Any:
        mesh = DeviceMesh("cuda", [3, 1])
        if rank in (1, 3):
            assert mesh.get_coordinate() == ((0,) if rank == 3 else (1,))
            assert mesh.get_local_rank() == (0 if rank == 3 else 1)  # as the mesh has it, not as the world counts
            return summed(mesh.get_group())
        assert mesh.get_coordinate() is None
        with pytest.raises(RuntimeError, match=f"rank {rank} is not in"):
            mesh.get_group()
        with pytest.raises(RuntimeError, match="without mesh_dim_names"):
            mesh["dp"]
        return None

    assert ranks(4, program) == [None, 1010.0, None, 1010.0]


def test_a_mesh_of_groups_there_are() -> None:
    def program(rank: int) -> None:
        row, _ = dist.new_subgroups(2)
        column, _ = dist.new_subgroups_by_enumeration([[0, 2], [1, 3]])
        assert row is not None and column is not None
        one = DeviceMesh.from_group(row, "cpu", mesh_dim_names=("tp",))
        assert one.mesh.tolist() == dist.get_process_group_ranks(row) and one.get_group("tp") is row
        both = DeviceMesh.from_group([column, row], "cpu", np.arange(4).reshape(2, 2), mesh_dim_names=("dp", "tp"))
        assert both["dp"].get_group() is column and both.get_coordinate() == divmod(rank, 2)
        refused: list[tuple[str, Callable[[], Any]]] = [
            ("Invalid mesh", lambda: DeviceMesh.from_group(row, "cpu", [7, 8])),
            ("at least one", lambda: DeviceMesh.from_group([], "cpu")),
            ("a ProcessGroup or a list", lambda: DeviceMesh.from_group(dist.GroupMember.NON_GROUP_MEMBER, "cpu")),
            ("Must pass mesh if", lambda: DeviceMesh.from_group([row, column], "cpu")),
            ("Must pass mesh_dim_names", lambda: DeviceMesh.from_group([row, column], "cpu", [[0, 1], [2, 3]])),
            ("ndim equal", lambda: DeviceMesh.from_group([row], "cpu", [[0, 1]], mesh_dim_names=("a",))),
        ]
        for words, call in refused:
            with pytest.raises(ValueError, match=words):
                call()

    ranks(4, program)


def test_bad_meshes(joined: Callable[..., FakeGroup]) -> None:
    joined(rank=1, size=4)
    whole: Any = init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "tp"))
    refused: list[tuple[type[Exception], str, Callable[[], Any]]] = [
        (RuntimeError, "unique", lambda: init_device_mesh("cpu", (2, 2), mesh_dim_names=("a", "a"))),
        (RuntimeError, "same length", lambda: init_device_mesh("cpu", (2, 2), mesh_dim_names=("a",))),
        (RuntimeError, "not be bigger", lambda: init_device_mesh("cpu", (2, 3))),
        (RuntimeError, "with index is not supported", lambda: init_device_mesh("cuda:0", (2,))),
        (RuntimeError, "at least one rank", lambda: init_device_mesh("cpu", (0, 2))),
        (TypeError, "mesh_shape", lambda: init_device_mesh("cpu", 4)),
        (TypeError, "device_type", lambda: init_device_mesh(0, (4,))),
        (TypeError, "tuple of str", lambda: init_device_mesh("cpu", (4,), mesh_dim_names="dp")),
        (RuntimeError, "invalid keys", lambda: init_device_mesh("cpu", (4,), backend_override={"x": "tcp"})),
        (RuntimeError, "Invalid distributed backend", lambda: init_device_mesh("cpu", (4,), backend_override={0: "x"})),
        (TypeError, "required", lambda: DeviceMesh("cpu")),
        (TypeError, "array of ranks", lambda: DeviceMesh("cpu", [0.5])),
        (RuntimeError, "no array of ranks", lambda: DeviceMesh("cpu", [[0, 1], [2]])),
        (AssertionError, "non-overlapping", lambda: DeviceMesh("cpu", [0, 0])),
        (RuntimeError, r"are 0\.\.3", lambda: DeviceMesh("cpu", [0, 9])),
        (RuntimeError, "Cannot flatten", lambda: DeviceMesh("cpu", [0, 1])._flatten()),
        (TypeError, "backend_override must be a dict", lambda: init_device_mesh("cpu", (4,), backend_override=5)),
        (TypeError, "from_group: a ProcessGroup or a list", lambda: DeviceMesh.from_group(5, "cpu")),
    ]
    for call in (whole.get_group, whole.get_local_rank, whole.size):  # as torch's classes, which are those of lists
        refused += [(IndexError, f"mesh_dim={number}: the mesh has 2", partial(call, number)) for number in (2, -3)]
    refused += [
        (AssertionError, "mesh_dim must be an int", lambda: whole.get_group(1.5)),
        (TypeError, "mesh_dim must be an int", lambda: whole.size(1.5)),
        (IndexError, "rank 1 is not in", lambda: DeviceMesh("cpu", [0, 2]).get_local_rank()),
        (RuntimeError, "overlapping dim_names", lambda: whole["dp", "dp"]),
        (KeyError, "Invalid mesh_dim_names", lambda: whole["dp", 0]),
    ]
    for slip in (0, None, 1.5, slice(None)):
        refused.append((TypeError, "sliced by names.*'dp', 'tp'.*mesh.mesh", partial(whole.__getitem__, slip)))
    for kind, words, call in refused:
        with pytest.raises(kind, match=words) as caught:
            call()
        assert isinstance(caught.value, UsageError)


def test_a_mesh_joins_the_world_where_nobody_has(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    from tests.ports import free_port

    for name, value in (("RANK", "0"), ("WORLD_SIZE", "1"), ("MASTER_ADDR", "127.0.0.1")):
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("MASTER_PORT", str(free_port()))
    try:
        mesh = init_device_mesh("cpu", (1,), mesh_dim_names=("dp",))
        assert dist.is_initialized() and mesh.get_group() is dist.group.WORLD and mesh._flatten("dp") is mesh
    finally:
        dist.destroy_process_group()
