"""`in_shardings` and `out_shardings` of `partir.jit`: fixed first decisions, exact at the boundary."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from partir.errors import TilingError, word, word_all
from partir.sharding.actions import Action, Replicate
from partir.sharding.assignment import Assignment
from partir.tactics.manual import describe, tiles_for
from partir.tactics.specs import Dims, by_argument, dims_of, indivisible, spread_over, too_many_dims


@dataclass(frozen=True)
class Pins:
    """What the two trees say: the actions for arguments, and (result, axes of each dim) for results."""

    actions: tuple[Action, ...] = ()
    outputs: tuple[tuple[int, Dims], ...] = ()


def pins_of(assignment: Assignment, in_shardings: Any, out_shardings: Any) -> Pins:
    """Read `in_shardings` and `out_shardings`. Raises TilingError for all dims of both that do not divide, at once."""
    problems: list[str] = []
    outputs = _results(assignment, out_shardings, problems)
    actions = _arguments(assignment, in_shardings, problems)
    if problems:
        raise TilingError(word_all(problems))
    return Pins(tuple(actions), tuple(outputs))


def _arguments(assignment: Assignment, tree: Any, problems: list[str]) -> Sequence[Action]:
    """Tile what the specs name and keep the arguments whole on every other axis."""
    if tree is None:
        return []
    leaves = assignment.structure.program.signature.arguments
    entries = [
        (i, s) for i, s in spread_over(by_argument(tree, leaves), leaves, (), "argument") if leaves[i].role != "constant"
    ]
    wanted: list[tuple[str, int, str]] = []
    pins: list[Action] = []
    exact: list[tuple[int, Dims]] = []
    for index, spec in entries:
        leaf = leaves[index]
        dims = dims_of(spec, assignment.mesh, leaf.name)
        if len(dims) > len(leaf.shape):
            problems.append(too_many_dims(leaf.name, describe(assignment, index), spec, len(leaf.shape)))
            continue
        wanted += [(leaf.name, dim, axis) for dim, axes in enumerate(dims) for axis in axes]
        named = {axis for axes in dims for axis in axes}
        pins += [Replicate(leaf.name, axis) for axis in assignment.mesh.names if axis not in named]
        exact.append((index, dims))
    tiles, refused = tiles_for(assignment, wanted)
    problems += refused
    if not problems:
        problems += _inexact(assignment.apply(*tiles), exact)
    return [*pins, *tiles]


def _inexact(assignment: Assignment, exact: Sequence[tuple[int, Dims]]) -> list[str]:
    """An argument whose dim is made of parts may not be able to lie as asked."""
    problems: list[str] = []
    for index, dims in exact:
        for dim, axes in enumerate(dims):
            sizes = assignment.structure.atoms.sizes_of[index][dim]
            if axes and sizes and sizes[0] % assignment.mesh.size_of(*axes):
                name = assignment.structure.addresses.names[index]
                problems.append(
                    word(
                        f"cannot take {name} over {axes}",
                        where=describe(assignment, index),
                        why=f"dim {dim} is made of {' x '.join(map(str, sizes))}, and {sizes[0]} does not divide by "
                        f"{assignment.mesh.size_of(*axes)}",
                    )
                )
    return problems


def _results(assignment: Assignment, tree: Any, problems: list[str]) -> list[tuple[int, Dims]]:
    """(result, axes of each dim) for every result that `out_shardings` speaks of."""
    if tree is None:
        return []
    program, mesh = assignment.structure.program, assignment.mesh
    leaves = program.signature.results
    pinned: list[tuple[int, Dims]] = []
    for number, spec in spread_over(tree, leaves, ("result",), "result"):
        leaf = leaves[number]
        where = f"result {number} of {program.name}, {leaf.dtype}{list(leaf.shape)}"
        dims = dims_of(spec, mesh, leaf.name)
        if len(dims) > len(leaf.shape):
            problems.append(too_many_dims(leaf.name, where, spec, len(leaf.shape)))
            continue
        dims += ((),) * (len(leaf.shape) - len(dims))
        for dim, axes in enumerate(dims):
            already = 1
            for axis in axes:
                devices = mesh.size_of(axis)
                if leaf.shape[dim] % (already * devices):
                    problems.append(indivisible(leaf.name, axis, where, dim, leaf.shape, leaf.shape[dim], devices, already))
                    break
                already *= devices
        pinned.append((number, dims))
    return pinned
