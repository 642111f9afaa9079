"""PartitionSpecs as users hand them in: trees that stand for whole subtrees, checked against mesh, rank and size."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
from jax.sharding import NamedSharding, PartitionSpec

from partir.errors import MeshError, PathError, ProgramError, TilingError, error_text
from partir.frontend.signature import paths_of
from partir.mesh import Mesh
from partir.program import Leaf, Path, no_match
from partir.tactics.other_meshes import spec_over

Dims = tuple[tuple[str, ...] | None, ...]
"""The axes of each dim, major first; None for a dim that is left open."""


def is_spec(x: Any) -> bool:
    """Whether this is a sharding a user may hand in."""
    return isinstance(x, PartitionSpec | NamedSharding)


def dims_of(spec: Any, mesh: Mesh, name: str) -> Dims:
    """The axes a spec gives each dim. Raises for what is no spec, for axes that are not the mesh's, and for one named twice."""
    if isinstance(spec, NamedSharding):
        spec = _over(spec, mesh, name)
    if not isinstance(spec, PartitionSpec):
        raise ProgramError(error_text(f"not a sharding of {name}: {spec!r}", hint="a PartitionSpec, a NamedSharding or None"))
    dims = tuple(_axes_of(entry) for entry in spec)
    axes = [axis for own in dims for axis in own or ()]
    for axis in axes:
        mesh.check(axis, f"the sharding of {name}, {spec}")
    twice = sorted({axis for axis in axes if axes.count(axis) > 1})
    if twice:
        raise TilingError(
            error_text(
                f"cannot shard {name} as {spec}",
                why=f'mesh axis "{twice[0]}" is named {axes.count(twice[0])} times, and its devices can cut a value only once',
                hint="name each axis once",
            )
        )
    return dims


def _axes_of(entry: Any) -> tuple[str, ...] | None:
    if entry is PartitionSpec.UNCONSTRAINED:
        return None
    return () if entry is None else (entry,) if isinstance(entry, str) else tuple(entry)


def _over(sharding: NamedSharding, mesh: Mesh, name: str) -> PartitionSpec:
    """The spec of a sharding, said over `mesh`. Raises MeshError where it is for another mesh of which that cannot be done."""
    found = spec_over(sharding, mesh)
    if found is None:
        raise MeshError(
            error_text(
                f"the sharding of {name} is for another mesh",
                where=f"{sharding.spec} over {Mesh.of(sharding.mesh).described(mesh)}",
                why=f"no axes of {mesh!r}, the mesh to partition over, give each device the same piece",
                hint="a PartitionSpec, or a NamedSharding on the mesh of partir.jit",
            )
        )
    return found


def spread_over(tree: Any, leaves: Sequence[Leaf], root: Path, what: str) -> list[tuple[int, Any]]:
    """(leaf number, spec) for every leaf that a tree of specs speaks of; a spec stands for everything below its place.

    Raises PathError for places that are in the tree and not in the function.
    """
    if is_spec(tree):
        return [(i, tree) for i in range(len(leaves))]
    boxed = jax.tree.map(_Box, tree, is_leaf=lambda x: x is None or is_spec(x))
    found: list[tuple[int, Any]] = []
    for path, box in paths_of(boxed, root):
        members = [i for i, leaf in enumerate(leaves) if leaf.path[: len(path)] == path]
        if not members:
            raise PathError(no_match("/".join(path), [leaf.path for leaf in leaves], what))
        if box.spec is not None:
            found += [(i, box.spec) for i in members]
    return found


class _Box:
    """Keeps a spec from being taken for a container."""

    def __init__(self, spec: Any) -> None:
        self.spec = spec


def by_argument(tree: Any, leaves: Sequence[Leaf]) -> Any:
    """A tree of specs with argument names at its root: a tuple or list stands for the arguments in order."""
    if is_spec(tree) or not isinstance(tree, tuple | list):
        return tree
    names = list(dict.fromkeys(leaf.path[0] for leaf in leaves if leaf.role != "constant"))
    if len(tree) > len(names):
        raise ProgramError(
            error_text(f"specs for {len(tree)} arguments", why=f"the function has {len(names)}: {', '.join(names)}")
        )
    return dict(zip(names, tree, strict=False))


def indivisible(name: str, axis: str, where: str, dim: int, shape: Sequence[int], size: int, devices: int, already: int) -> str:
    """The message for a dim that does not divide: `size` is what must divide, of dim `dim` of `shape`, over `devices` more
    devices than the `already` it is cut over."""
    total = devices * already
    others = [d for d, n in enumerate(shape) if d != dim and n % devices == 0 and n > 1]
    better = (size + -size % total) * shape[dim] // size
    parts = "" if size == shape[dim] else f", which is made of {size} x {shape[dim] // size}"
    over = f'the {devices} devices of "{axis}"' + (f" (times {already} it is cut over already)" if already > 1 else "")
    hints = [f"dim {d} ({shape[d]})" for d in others[:1]]
    return error_text(
        f'cannot tile {name} over mesh axis "{axis}"',
        where=f"{where}, dim {dim}{parts}",
        why=f"{size} does not divide by {over} ({size} mod {total} = {size % total})",
        hint=", ".join([*hints, "another axis"]) + f", or pad dim {dim} to {better}",
    )


def too_many_dims(name: str, where: str, spec: Any, rank: int) -> str:
    """The message for a spec that speaks of more dims than there are."""
    return error_text(
        f"cannot shard {name} as {spec}",
        where=where,
        why=f"the spec speaks of {len(getattr(spec, 'spec', spec))} dims, the value has {rank}",
    )
