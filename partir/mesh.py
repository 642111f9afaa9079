"""Mesh arithmetic: named axes with sizes, device coordinates and replica groups; needs no devices."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from partir.errors import MeshError, word


@dataclass(frozen=True, init=False)
class Mesh:
    """A logical device grid: axis names in order, each with its size.

    >>> Mesh(data=4, model=2)
    Mesh(data=4, model=2)
    """

    axes: tuple[tuple[str, int], ...]

    def __init__(self, axes: Mapping[str, int] | Sequence[tuple[str, int]] = (), /, **sizes: int) -> None:
        pairs: tuple[tuple[str, Any], ...] = tuple(axes.items()) if isinstance(axes, Mapping) else tuple(axes)
        pairs += tuple(sizes.items())
        for name, size in pairs:
            if not isinstance(size, int) or isinstance(size, bool):
                raise MeshError(word(f'mesh axis "{name}" has size {size!r}', why="a size is a whole number of devices"))
            if size < 1:
                raise MeshError(word(f'mesh axis "{name}" has size {size}', why="a mesh axis has one device or more"))
        if len({name for name, _ in pairs}) != len(pairs):
            raise MeshError(word(f"mesh axes {[name for name, _ in pairs]} are not all different"))
        object.__setattr__(self, "axes", pairs)

    @classmethod
    def of(cls, mesh: Any) -> Mesh:
        """The logical grid of any mesh: ours, `jax.sharding.Mesh`, `AbstractMesh`, or a dict of sizes."""
        if isinstance(mesh, Mesh):
            return mesh
        shape = mesh if isinstance(mesh, Mapping) else getattr(mesh, "shape", None)
        if not isinstance(shape, Mapping):
            raise MeshError(
                word(f"not a mesh: {mesh!r}", hint="jax.make_mesh((4, 2), ('data', 'model')), or partir.Mesh(data=4, model=2)")
            )
        return cls([(str(name), int(size)) for name, size in shape.items()])

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
        """The number of devices along some axes, multiplied. Raises MeshError for a name that is not an axis."""
        shape = self.shape
        for axis in axes:
            self.check(axis)
        return math.prod(shape[axis] for axis in axes)

    def check(self, axis: str) -> None:
        """Raise MeshError unless `axis` is an axis of this mesh."""
        if axis not in self.names:
            raise MeshError(
                word(
                    f'no mesh axis "{axis}"',
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
        """Flat device numbers that take part in one collective over `axes`, first axis major.

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

    def __repr__(self) -> str:
        if all(name.isidentifier() for name in self.names):
            return f"Mesh({', '.join(f'{name}={size}' for name, size in self.axes)})"
        return f"Mesh({dict(self.axes)!r})"
