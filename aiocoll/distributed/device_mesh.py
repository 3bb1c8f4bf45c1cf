"""DeviceMesh: the ranks as an array of any dimensions, with a group along each of them.

The rule: a group along a dimension has its members in the mesh's order, so a rank's number in it is its coordinate. The
device's type is kept and means nothing here: arrays live where NumPy has them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import TracebackType
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from .arguments import integer
from .backends import backend_named
from .groups import new_group
from .membership import init_process_group, is_initialized
from .refusals import (
    AssertionUsageError,
    IndexUsageError,
    KeyUsageError,
    RuntimeUsageError,
    TypeAssertionUsageError,
    TypeUsageError,
)
from .state import WORLD, ProcessGroup, world

Dimension = int | str | None


def init_device_mesh(
    device_type: str,
    mesh_shape: tuple[int, ...],
    *,
    mesh_dim_names: tuple[str, ...] | None = None,
    backend_override: Mapping[int | str, Any] | None = None,
) -> DeviceMesh:
    """A mesh of the first ranks of the world, in rank order. All processes of the world call it.

    Joins the world first (``init_process_group()``) where that has not happened.

    Arguments:
        device_type: Such as "cpu"; letters only.
        mesh_shape: How many ranks there are along each dimension.
        mesh_dim_names: A name for each dimension.
        backend_override: Accepted, by number or name of a dimension: every group uses the world's links.
    """
    try:
        shape = tuple(integer(each, "init_device_mesh", "mesh_shape") for each in mesh_shape)
    except TypeError as error:
        raise TypeUsageError(f"init_device_mesh: mesh_shape must be a tuple of ints, not {mesh_shape!r}") from error
    if any(each < 1 for each in shape):
        raise RuntimeUsageError(f"init_device_mesh: mesh_shape={shape}: every dimension has at least one rank")
    names = _names(mesh_dim_names, len(shape))
    _check_override(backend_override, len(shape), names)
    ranks = np.arange(int(np.prod(shape, dtype=np.int64))).reshape(shape)
    return DeviceMesh(device_type, ranks, mesh_dim_names=names)


class DeviceMesh:
    """An array of ranks of the world. All processes of the world make it, with the same array.

    Arguments:
        device_type: Such as "cpu"; letters only.
        mesh: The ranks: an array of any dimensions, each rank at most once.
        mesh_dim_names: A name for each dimension; ``mesh["dp"]`` and ``mesh["dp", "tp"]`` are then the part of the mesh
            along those dimensions that holds this process.
        backend_override: Accepted: every group uses the world's links.
    """

    def __init__(
        self,
        device_type: str,
        mesh: Any = None,
        *,
        mesh_dim_names: tuple[str, ...] | None = None,
        backend_override: Sequence[Any] | None = None,
        _groups: Sequence[ProcessGroup | None] | None = None,
        _root: DeviceMesh | None = None,
    ) -> None:
        del backend_override
        self._device_type = _device(device_type)
        self._mesh = _ranks(mesh)
        self._names = _names(mesh_dim_names, self._mesh.ndim)
        if not is_initialized():
            init_process_group()
        size = world().size
        if self._mesh.size > size:
            raise RuntimeUsageError(
                f"Mesh should not be bigger than default world size {size}, but found {self._mesh.size} ranks!"
            )
        if self._mesh.size and not 0 <= self._mesh.min() <= self._mesh.max() < size:
            raise RuntimeUsageError(f"DeviceMesh: ranks of the world are 0..{size - 1}, not {self._mesh.tolist()}")
        self._rank = world().rank
        found = np.argwhere(self._mesh == self._rank)
        self._coordinate = tuple(int(each) for each in found[0]) if len(found) else None
        self._root = self if _root is None else _root
        self._flattened: dict[str, DeviceMesh] = {}
        self._groups = tuple(self._made_groups()) if _groups is None else tuple(_groups)

    def _made_groups(self) -> list[ProcessGroup | None]:
        """My group along each dimension; the others' are made, too, where they are members."""
        mine: list[ProcessGroup | None] = []
        for dimension in range(self._mesh.ndim):
            lines = np.moveaxis(self._mesh, dimension, -1).reshape(-1, self._mesh.shape[dimension])
            if len(lines) == 1 and lines[0].tolist() == list(range(world().size)):
                mine.append(WORLD)
                continue
            name = f"mesh_{self._names[dimension]}" if self._names else f"mesh_dim_{dimension}"
            made = [new_group(line.tolist(), group_desc=f"{name}{line.tolist()}", sort_ranks=False) for line in lines]
            mine.append(next((each for each in made if isinstance(each, ProcessGroup)), None))
        return mine

    # ------------------------------------------------------------------------------------------ facts

    @property
    def device_type(self) -> str:
        """The device's type, as it was given."""
        return self._device_type

    @property
    def mesh(self) -> NDArray[Any]:
        """The ranks."""
        return self._mesh.copy()

    @property
    def mesh_dim_names(self) -> tuple[str, ...] | None:
        """The dimensions' names."""
        return self._names

    @property
    def ndim(self) -> int:
        """How many dimensions there are."""
        return self._mesh.ndim

    @property
    def shape(self) -> tuple[int, ...]:
        """How many ranks there are along each."""
        return self._mesh.shape

    def size(self, mesh_dim: Dimension = None) -> int:
        """How many ranks there are, in all or along one dimension."""
        return self._mesh.size if mesh_dim is None else self._mesh.shape[self._dimension(mesh_dim)]

    def get_coordinate(self) -> tuple[int, ...] | None:
        """Where this process is; None where it is not in the mesh."""
        return self._coordinate

    def get_rank(self) -> int:
        """This process's rank in the world."""
        return self._rank

    def get_local_rank(self, mesh_dim: Dimension = None) -> int:
        """This process's rank in the group along a dimension, which is its coordinate there."""
        return self.get_group(mesh_dim).rank()

    def get_group(self, mesh_dim: Dimension = None) -> ProcessGroup:
        """The group along a dimension that holds this process; without ``mesh_dim`` the only one."""
        if mesh_dim is None and self.ndim != 1:
            raise RuntimeUsageError(
                f"Found the DeviceMesh have {self.ndim} dimensions. Optional kwarg `mesh_dim` needs to be specified "
                "when device_mesh.ndim > 1; get_all_groups() gives the groups of all of them"
            )
        if isinstance(mesh_dim, str) and mesh_dim in self._root._flattened:
            return self._root._flattened[mesh_dim].get_group()
        group = self._groups[0 if mesh_dim is None else self._dimension(mesh_dim)]
        if group is None:
            raise IndexUsageError(f"rank {self._rank} is not in {self!r} and has no group along its dimensions")
        return group

    def get_all_groups(self) -> list[ProcessGroup]:
        """The groups that hold this process, one per dimension."""
        return [self.get_group(dimension) for dimension in range(self.ndim)]

    # ------------------------------------------------------------------------------------------ parts

    def __getitem__(self, mesh_dim_names: str | tuple[str, ...]) -> DeviceMesh:
        """The part along the named dimensions, in that order, that holds this process. Nothing is made anew."""
        if not self._names:
            raise RuntimeUsageError("Cannot slice a DeviceMesh without mesh_dim_names!")
        if not isinstance(mesh_dim_names, str | tuple | list):
            raise TypeUsageError(
                f"DeviceMesh: mesh[{mesh_dim_names!r}]: a mesh is sliced by names, one or a tuple of them, of "
                f"{list(self._names)}; mesh.mesh[...] gives ranks by number"
            )
        wanted = (mesh_dim_names,) if isinstance(mesh_dim_names, str) else tuple(mesh_dim_names)
        if wanted == self._names:
            return self
        if len(wanted) == 1 and wanted[0] in self._root._flattened:
            return self._root._flattened[wanted[0]]
        unknown = [each for each in wanted if each not in self._names]
        if not unknown and len(set(wanted)) != len(wanted):
            raise RuntimeUsageError(f"Slicing overlapping dim_names {wanted} is not allowed.")
        if unknown or not wanted:
            valid = [*self._names, *self._root._flattened]
            raise KeyUsageError(f"Invalid mesh_dim_names {wanted} specified. Valid mesh_dim_names are {valid}.")
        dimensions = [self._names.index(each) for each in wanted]
        here = self._coordinate or (0,) * self.ndim
        at = tuple(slice(None) if each in dimensions else here[each] for each in range(self.ndim))
        kept = sorted(dimensions)
        part = self._mesh[at].transpose([kept.index(each) for each in dimensions])
        groups = [self._groups[each] for each in dimensions]
        return DeviceMesh(self._device_type, part, mesh_dim_names=wanted, _groups=groups, _root=self._root)

    def _flatten(self, mesh_dim_name: str | None = None, backend_override: Any = None) -> DeviceMesh:
        """This mesh as one dimension, named after its dimensions or as given; the mesh it comes from knows the name,
        too. All processes of the world call it."""
        del backend_override
        if not self._names:
            raise RuntimeUsageError("Cannot flatten a DeviceMesh without mesh_dim_names!")
        name = mesh_dim_name or "_".join(self._names)
        if self._names == (name,):
            return self
        root = self._root
        if root._names and name in root._names:
            raise RuntimeUsageError(f"{name} already exists for submesh of the DeviceMesh {root!r}")
        known = root._flattened.get(name)
        if known is None:
            groups = self._groups if self.ndim == 1 else [self._flat_group(name)]
            known = root._flattened[name] = DeviceMesh(
                self._device_type, self._mesh.reshape(-1), mesh_dim_names=(name,), _groups=groups, _root=root
            )
        elif known._mesh.tolist() != self._mesh.reshape(-1).tolist():
            raise RuntimeUsageError(
                f"Flatten mesh with mesh_dim_name {name} has been created before, of other ranks: "
                f"{known._mesh.tolist()}, not {self._mesh.reshape(-1).tolist()}. Please specify another valid "
                "mesh_dim_name."
            )
        return known

    def _flat_group(self, name: str) -> ProcessGroup | None:
        """My group of all dimensions; the others' are made, too."""
        mine: ProcessGroup | None = None
        for part in self._alike():
            if part.tolist() == list(range(world().size)):
                mine = WORLD
                continue
            made = new_group(part.tolist(), group_desc=f"mesh_{name}{part.tolist()}", sort_ranks=False)
            mine = made if isinstance(made, ProcessGroup) else mine
        return mine

    def _alike(self) -> list[NDArray[Any]]:
        """The parts of the whole mesh along the dimensions of this one, flat, mine among them."""
        root = self._root
        if root is self:
            return [self._mesh.reshape(-1)]
        assert root._names is not None and self._names is not None
        dimensions = [root._names.index(each) for each in self._names]
        others = [each for each in range(root.ndim) if each not in dimensions]
        return list(root._mesh.transpose([*others, *dimensions]).reshape(-1, self._mesh.size))

    @staticmethod
    def from_group(
        group: ProcessGroup | list[ProcessGroup],
        device_type: str,
        mesh: Any = None,
        *,
        mesh_dim_names: tuple[str, ...] | None = None,
    ) -> DeviceMesh:
        """A mesh of groups that there are already, one per dimension; several groups need ``mesh`` and names."""
        if isinstance(group, ProcessGroup):
            ranks = list(group.member().ranks)
            if mesh is not None and np.asarray(mesh).tolist() != ranks:
                raise RuntimeUsageError(f"Invalid mesh {mesh} for ProcessGroup with ranks {ranks}")
            return DeviceMesh(device_type, ranks, mesh_dim_names=mesh_dim_names, _groups=[group])
        if not isinstance(group, list | tuple):
            raise TypeUsageError(f"DeviceMesh.from_group: a ProcessGroup or a list of them, not {group!r}")
        groups = list(group)
        if not groups or not all(isinstance(each, ProcessGroup) for each in groups):
            raise RuntimeUsageError("Expects at least one ProcessGroup to be passed, and nothing else")
        for value, name in ((mesh, "mesh"), (mesh_dim_names, "mesh_dim_names")):
            if value is None:
                raise RuntimeUsageError(f"Must pass {name} if passing multiple ProcessGroups")
        if _ranks(mesh).ndim != len(groups):
            raise RuntimeUsageError(
                f"Expects mesh with ndim equal to number of ProcessGroups but got mesh {_ranks(mesh).tolist()} and "
                f"{len(groups)} ProcessGroups"
            )
        return DeviceMesh(device_type, mesh, mesh_dim_names=mesh_dim_names, _groups=groups)

    # ------------------------------------------------------------------------------------------ as a value

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Nothing: a mesh is used by name."""

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, DeviceMesh):
            return NotImplemented
        return self._value() == other._value()

    def __hash__(self) -> int:
        return hash(self._value())

    def _value(self) -> tuple[Any, ...]:
        return self._device_type, self._names, self._mesh.shape, tuple(self._mesh.reshape(-1).tolist())

    def __repr__(self) -> str:
        if self._names:
            shape = ", ".join(f"{name}={size}" for name, size in zip(self._names, self.shape, strict=True))
            return f"DeviceMesh(({shape}), {self._device_type!r}, {self._mesh.tolist()})"
        return f"DeviceMesh({self.shape}, {self._device_type!r}, {self._mesh.tolist()})"

    def _dimension(self, given: Any) -> int:
        if isinstance(given, str):
            if not self._names or given not in self._names:
                raise KeyUsageError(
                    f"Mesh dimension {given!r} does not exist. Available mesh dimensions are {self._names}"
                )
            return self._names.index(given)
        try:
            number = integer(given, "DeviceMesh", "mesh_dim")
        except TypeUsageError as error:
            raise TypeAssertionUsageError(*error.args) from error.__cause__
        if not -self.ndim <= number < self.ndim:
            raise IndexUsageError(f"DeviceMesh: mesh_dim={number}: the mesh has {self.ndim} dimensions")
        return number


def _device(device_type: Any) -> str:
    if not isinstance(device_type, str):
        raise TypeUsageError(f"DeviceMesh: device_type must be a str, got {type(device_type).__name__}")
    if device_type and not device_type.isalpha():
        raise RuntimeUsageError(
            f"Device type with index is not supported but got {device_type}. It is recommended to pass the type alone, "
            "such as 'cpu'"
        )
    return device_type


def _ranks(mesh: Any) -> NDArray[Any]:
    if mesh is None:
        raise TypeUsageError("DeviceMesh: the mesh argument is required: an array of ranks")
    try:
        ranks = np.array(mesh)
    except ValueError as error:
        raise RuntimeUsageError(f"DeviceMesh: mesh={mesh!r} is no array of ranks: {error}") from error
    if ranks.dtype.kind not in "iu" or ranks.size == 0:
        raise TypeUsageError(f"DeviceMesh: mesh must be an array of ranks, not {mesh!r}")
    if len(np.unique(ranks)) != ranks.size:
        raise AssertionUsageError(f"DeviceMesh: Please use a non-overlapping layout: a rank is twice in {mesh!r}")
    return ranks.astype(np.int64)


def _names(given: Any, dimensions: int) -> tuple[str, ...] | None:
    if given is None:
        return None
    if isinstance(given, str) or not all(isinstance(each, str) for each in given):
        raise TypeUsageError(f"DeviceMesh: mesh_dim_names must be a tuple of str, not {given!r}")
    names = tuple(given)
    if len(set(names)) != len(names):
        raise RuntimeUsageError(
            f"Each mesh_dim_name must be unique. Found repeated mesh_dim_name in mesh_dim_names {names}"
        )
    if len(names) != dimensions:
        raise RuntimeUsageError(
            f"mesh_shape and mesh_dim_names should have same length! Found len(mesh_dim_names): {len(names)} and "
            f"len(mesh_shape):{dimensions}."
        )
    return names


def _check_override(given: Mapping[int | str, Any] | None, dimensions: int, names: tuple[str, ...] | None) -> None:
    if not (given is None or isinstance(given, Mapping)):
        raise TypeUsageError(f"init_device_mesh: backend_override must be a dict, got {type(given).__name__}")
    for key, value in (given or {}).items():
        if key not in range(dimensions) and key not in (names or ()):
            raise RuntimeUsageError(
                f"Found invalid keys in backend_override: got {key!r}, expected integers in range [0, {dimensions}) or "
                f"one of {names}"
            )
        backend = value[0] if isinstance(value, tuple) else value
        if isinstance(backend, str):
            backend_named(backend)
