"""Logical meshes: named axes with sizes, device coordinates, replica groups, translation between meshes; needs no devices."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

from partir.errors import MeshError, error_text


@dataclass(frozen=True, init=False)
class Mesh:
    """A logical device grid: axis names in order, each with its size.

    >>> Mesh(data=4, model=2)
    Mesh(data=4, model=2)
    """

    axes: tuple[tuple[str, int], ...]
    device_ids: tuple[int, ...] = field(default=(), compare=False)
    """The ids of the devices in row-major order, if the mesh was made of devices. Comparison ignores them."""

    def __init__(self, axes: Mapping[str, int] | Sequence[tuple[str, int]] = (), /, **sizes: int) -> None:
        pairs: tuple[tuple[str, Any], ...] = tuple(axes.items()) if isinstance(axes, Mapping) else tuple(axes)
        pairs += tuple(sizes.items())
        for name, size in pairs:
            if not isinstance(size, int) or isinstance(size, bool):
                raise MeshError(error_text(f'mesh axis "{name}" has size {size!r}', why="a size is a whole number of devices"))
            if size < 1:
                raise MeshError(error_text(f'mesh axis "{name}" has size {size}', why="a mesh axis has one device or more"))
        if len({name for name, _ in pairs}) != len(pairs):
            raise MeshError(error_text(f"mesh axes {[name for name, _ in pairs]} are not all different"))
        object.__setattr__(self, "axes", pairs)
        object.__setattr__(self, "device_ids", ())

    @classmethod
    def of(cls, mesh: Any) -> Mesh:
        """The logical grid of any mesh: ours, `jax.sharding.Mesh`, `AbstractMesh`, or a dict of sizes."""
        if isinstance(mesh, Mesh):
            return mesh
        shape = mesh if isinstance(mesh, Mapping) else getattr(mesh, "shape", None)
        if not isinstance(shape, Mapping):
            raise MeshError(
                error_text(
                    f"not a mesh: {mesh!r}", hint="jax.make_mesh((4, 2), ('data', 'model')), or partir.Mesh(data=4, model=2)"
                )
            )
        made = cls([(str(name), int(size)) for name, size in shape.items()])
        return made if isinstance(mesh, Mapping) else made.on(_device_ids(mesh))

    def on(self, device_ids: Sequence[int]) -> Mesh:
        """This mesh on these devices, in row-major order."""
        made = Mesh(self.axes)
        object.__setattr__(made, "device_ids", tuple(device_ids))
        return made

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the axes, major first."""
        return tuple(name for name, _ in self.axes)

    @property
    def shape(self) -> dict[str, int]:
        """Sizes by axis name, in mesh order (as on a `jax.sharding.Mesh`)."""
        return dict(self.axes)

    @property
    def axis_names(self) -> tuple[str, ...]:
        """`names`, as a `jax.sharding.Mesh` calls them."""
        return self.names

    @property
    def size(self) -> int:
        """The number of devices."""
        return math.prod(size for _, size in self.axes)

    def size_of(self, *axes: str) -> int:
        """The product of the sizes of some axes. Raises MeshError for a name that is not an axis."""
        shape = self.shape
        for axis in axes:
            self.check(axis)
        return math.prod(shape[axis] for axis in axes)

    def check(self, axis: str, where: str = "") -> None:
        """Raise MeshError unless `axis` is an axis of this mesh; `where` says in the message what names it."""
        if axis not in self.names:
            raise MeshError(
                error_text(
                    f'no mesh axis "{axis}"',
                    where=where,
                    why=f"the mesh has {', '.join(f'{n}={s}' for n, s in self.axes) or 'no axes'}",
                    hint="name one of these axes, or make the mesh with the axis you mean",
                )
            )

    def stride_of(self, axis: str) -> int:
        """The distance in flat device number between neighbours along `axis` (the last axis is innermost)."""
        index = self.names.index(axis)
        return math.prod(size for _, size in self.axes[index + 1 :])

    def coordinates(self) -> Iterator[dict[str, int]]:
        """The coordinates of each device, in flat (row-major) order."""
        for position in itertools.product(*(range(size) for _, size in self.axes)):
            yield dict(zip(self.names, position, strict=True))

    def replica_groups(self, axes: Sequence[str]) -> list[list[int]]:
        """The replica groups of a collective over `axes`: lists of flat device numbers, in which the first axis is major.

        >>> Mesh(data=2, model=2).replica_groups(["data"])
        [[0, 2], [1, 3]]
        """
        rest = [axis for axis in self.names if axis not in axes]
        groups: list[list[int]] = []
        for outer in itertools.product(*(range(self.size_of(axis)) for axis in rest)):
            base = sum(i * self.stride_of(axis) for i, axis in zip(outer, rest, strict=True))
            groups.append(
                [
                    base + sum(i * self.stride_of(axis) for i, axis in zip(inner, axes, strict=True))
                    for inner in itertools.product(*(range(self.size_of(axis)) for axis in axes))
                ]
            )
        return groups

    def translated(self, axes: Sequence[str], theirs: Mesh) -> tuple[str, ...] | None:
        """The axes of this mesh (major first) that shard a dim as `axes` of another mesh do: each device gets the same shard.

        None if there are no such axes. If the other mesh is of other devices, an axis is translated to the one of the same
        name, which must have the same size.

        >>> Mesh(x=4, y=2).translated(["z"], Mesh(z=8)), Mesh(x=4, y=2).translated(["a"], Mesh(a=2, b=4))
        (('x', 'y'), None)
        """
        if theirs.axes == self.axes and theirs.device_ids in ((), self.device_ids):
            return tuple(axes)
        places = self.places_in(theirs)
        if places is not None:
            return self.cut_as(theirs, axes, places)
        return tuple(axes) if all(self.shape.get(axis) == theirs.shape[axis] for axis in axes) else None

    def places_in(self, theirs: Mesh) -> list[int] | None:
        """For each device of this mesh, its position in another mesh of the same devices (both in row-major order).

        None if the other mesh is of other devices. A mesh that was not made of devices is taken to have the same ones: with the
        same axes in any order, the device at the same coordinates; otherwise the device at the same position.
        """
        if theirs.size != self.size:
            return None
        if not theirs.device_ids:
            return self.places_by_name(theirs) or list(range(self.size))
        place = {device: position for position, device in enumerate(theirs.device_ids)}
        ours = self.device_ids or sorted(place)
        return [place[device] for device in ours] if place.keys() == set(ours) else None

    def places_by_name(self, theirs: Mesh) -> list[int] | None:
        """For each device, the position of the one at the same coordinates in a mesh with the same axes in any order.

        None if the axes or their sizes differ.
        """
        if sorted(theirs.axes) != sorted(self.axes):
            return None
        strides = {axis: theirs.stride_of(axis) for axis in theirs.names}
        return [sum(index * strides[axis] for axis, index in position.items()) for position in self.coordinates()]

    def cut_as(self, theirs: Mesh, axes: Sequence[str], places: Sequence[int]) -> tuple[str, ...] | None:
        """The axes (major first) that shard over this mesh as `axes` over another one, in which our devices have the positions
        `places`; None if there are none."""
        if theirs.axes == self.axes and all(place == position for position, place in enumerate(places)):
            return tuple(axes)
        pieces = theirs.pieces(axes)
        return self.axes_of([pieces[place] for place in places])

    def pieces(self, axes: Sequence[str]) -> list[int]:
        """For each device in row-major order: the number of its shard, of a dim that is sharded over `axes` (first axis major).

        >>> Mesh(data=2, model=2).pieces(["model"])
        [0, 1, 0, 1]
        """
        found: list[int] = []
        for position in self.coordinates():
            piece = 0
            for axis in axes:
                piece = piece * self.size_of(axis) + position[axis]
            found.append(piece)
        return found

    def axes_of(self, pieces: Sequence[int]) -> tuple[str, ...] | None:
        """The axes (major first) over which each device has the shard of this number: the inverse of `pieces`; None if none do.

        >>> Mesh(x=4, y=2).axes_of([0, 1, 2, 3, 4, 5, 6, 7]), Mesh(x=4, y=2).axes_of([7, 6, 5, 4, 3, 2, 1, 0])
        (('x', 'y'), None)
        """
        steps = {axis: pieces[self.stride_of(axis)] for axis, size in self.axes if size > 1}  # one step along each axis
        axes = tuple(sorted((axis for axis, step in steps.items() if step > 0), key=lambda axis: -steps[axis]))
        return axes if self.pieces(axes) == list(pieces) else None

    def described(self, other: Mesh) -> str:
        """The mesh as text for messages beside another mesh: with its devices, if they differ from those or are in another
        order."""
        if not self.device_ids or self.device_ids == (other.device_ids or tuple(sorted(self.device_ids))):
            return repr(self)
        first = ", ".join(map(str, self.device_ids[:8]))
        return f"{self!r} on devices {first}{', ...' if len(self.device_ids) > 8 else ''}"

    def __repr__(self) -> str:
        if all(name.isidentifier() for name in self.names):
            return f"Mesh({', '.join(f'{name}={size}' for name, size in self.axes)})"
        return f"Mesh({dict(self.axes)!r})"


@lru_cache(maxsize=64)
def _device_ids(mesh: Any) -> tuple[int, ...]:
    """The ids of a mesh's devices; () for a mesh without devices (an abstract mesh raises when it is asked for them)."""
    try:
        devices = [] if mesh.empty else mesh.devices.flat
    except (AttributeError, ValueError):
        return ()
    return tuple(int(device.id) for device in devices)
