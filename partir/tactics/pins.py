"""`in_shardings` and `out_shardings` of `partir.jit`: fixed first decisions, exact at the boundary."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
from jax.sharding import NamedSharding, PartitionSpec

from partir.errors import ProgramError, TilingError, word, word_all
from partir.frontend.signature import paths_of
from partir.program import Leaf
from partir.sharding.actions import Action, Replicate
from partir.sharding.assignment import Assignment
from partir.tactics.manual import Manual, describe, tree_entries

Dims = tuple[tuple[str, ...], ...]


def pinned_arguments(assignment: Assignment, tree: Any) -> Sequence[Action]:
    """Tile what the specs name and keep the arguments whole on every other axis."""
    if tree is None:
        return []
    entries = tree_entries(tree, assignment)
    tiles = Manual(dict(entries)).actions(assignment) if any(_axes(spec) for _, spec in entries) else []
    after = assignment.apply(*tiles)
    signature = assignment.structure.program.signature
    pins: list[Action] = []
    for pattern, spec in entries:
        for index in signature.select(pattern):
            named = {axis for axes in _axes(spec) for axis in axes}
            pins += [Replicate(signature.arguments[index].name, a) for a in assignment.mesh.names if a not in named]
            _check_exact(after, index, _axes(spec))
    return [*pins, *tiles]


def _check_exact(assignment: Assignment, index: int, dims: Dims) -> None:
    """An argument whose dim is made of parts may not be able to lie as asked."""
    atoms = assignment.structure.atoms
    for dim, axes in enumerate(dims):
        sizes = atoms.sizes_of[index][dim]
        if axes and sizes and sizes[0] % assignment.mesh.size_of(*axes):
            raise TilingError(
                word(
                    f"cannot take {assignment.structure.addresses.names[index]} over {axes}",
                    where=describe(assignment, index),
                    why=f"dim {dim} is made of {' x '.join(map(str, sizes))}, and {sizes[0]} does not divide by "
                    f"{assignment.mesh.size_of(*axes)}",
                )
            )


def pinned_results(assignment: Assignment, tree: Any) -> tuple[tuple[int, Dims], ...]:
    """(result, axes of each dim) for every result that `out_shardings` speaks of. Raises for dims that do not divide."""
    if tree is None:
        return ()
    results = assignment.structure.program.signature.results
    if _is_spec(tree):
        specs = [tree] * len(results)
    else:
        found = dict(paths_of(jax.tree.map(_Box, tree, is_leaf=_is_spec_or_none), ("result",)))
        specs = [_lookup(found, leaf) for leaf in results]
    pinned: list[tuple[int, Dims]] = []
    problems: list[str] = []
    for number, (leaf, spec) in enumerate(zip(results, specs, strict=True)):
        if spec is None:
            continue
        dims = _axes(spec)
        if len(dims) > len(leaf.shape):
            problems.append(word(f"cannot shard {leaf.name} as {spec}", why=f"it has {len(leaf.shape)} dims"))
            continue
        dims += ((),) * (len(leaf.shape) - len(dims))
        for dim, axes in enumerate(dims):
            devices = assignment.mesh.size_of(*axes) if axes else 1
            if leaf.shape[dim] % devices:
                problems.append(
                    word(
                        f"cannot shard {leaf.name} over {axes}",
                        where=f"result {number}, {leaf.dtype}{list(leaf.shape)}, dim {dim}",
                        why=f"{leaf.shape[dim]} does not divide by {devices} ({leaf.shape[dim]} mod {devices} = "
                        f"{leaf.shape[dim] % devices})",
                    )
                )
        pinned.append((number, dims))
    if problems:
        raise TilingError(word_all(problems))
    return tuple(pinned)


class _Box:
    def __init__(self, spec: Any) -> None:
        self.spec = spec


def _lookup(found: dict[tuple[str, ...], Any], leaf: Leaf) -> Any:
    """The spec of a result: its own, or that of a node above it."""
    for length in range(len(leaf.path), 0, -1):
        if leaf.path[:length] in found:
            return found[leaf.path[:length]].spec
    return None


def _is_spec(x: Any) -> bool:
    return isinstance(x, PartitionSpec | NamedSharding)


def _is_spec_or_none(x: Any) -> bool:
    return x is None or _is_spec(x)


def _axes(spec: Any) -> Dims:
    if isinstance(spec, NamedSharding):
        spec = spec.spec
    if not isinstance(spec, PartitionSpec):
        raise ProgramError(word(f"not a sharding: {spec!r}", hint="a PartitionSpec, a NamedSharding or None"))
    return tuple(() if e is None else (e,) if isinstance(e, str) else tuple(e) for e in spec)
