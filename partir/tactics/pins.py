"""`in_shardings` and `out_shardings` of `partir.jit`: fixed first decisions, exact at the boundary.

An argument lies as its spec says (`Pin`), and what the spec says of a dim is a claim for its class where nobody has one yet
(`Tile`): inputs first, then state, each in the order of the arguments. So where parameters and the batch are both cut over an
axis, a layer's parameters are gathered for it, as in FSDP, and its activations stay. A result leaves as its spec says, and its
spec is a claim, too, after all others.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from partir.errors import TilingError, error_texts
from partir.sharding.actions import Action, Pin, Tile
from partir.sharding.assignment import Assignment
from partir.sharding.indices import ValueIndex
from partir.tactics.manual import describe
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
        raise TilingError(error_texts(problems))
    return Pins(tuple(actions), tuple(outputs))


def _arguments(assignment: Assignment, tree: Any, problems: list[str]) -> Sequence[Action]:
    """Pin every dim that the specs speak of, or leave out (but not those they call unconstrained), and tile what they name."""
    if tree is None:
        return []
    leaves = assignment.structure.program.signature.arguments
    entries = spread_over(by_argument(tree, leaves), leaves, (), "argument")
    pins: list[Action] = []
    tiles: list[Action] = []
    for index, spec in sorted(entries, key=lambda entry: (leaves[entry[0]].role != "input", entry[0])):
        leaf = leaves[index]
        if leaf.role == "constant":
            continue
        where = describe(assignment, ValueIndex(index))
        for dim, axes in enumerate(_checked(assignment, spec, leaf.name, leaf.shape, where, problems)):
            if axes is not None:
                pins.append(Pin(leaf.name, dim, ",".join(axes)))
                tiles += [Tile(leaf.name, dim, axis) for axis in axes]
    return [*pins, *tiles]


def _results(assignment: Assignment, tree: Any, problems: list[str]) -> list[tuple[int, Dims]]:
    """(result, axes of each dim) for every result that `out_shardings` speaks of."""
    if tree is None:
        return []
    program = assignment.structure.program
    leaves = program.signature.results
    pinned: list[tuple[int, Dims]] = []
    for number, spec in spread_over(tree, leaves, ("result",), "result"):
        leaf = leaves[number]
        where = f"result {number} of {program.name}, {leaf.dtype}{list(leaf.shape)}"
        pinned.append((number, tuple(_checked(assignment, spec, leaf.name, leaf.shape, where, problems))))
    return pinned


def _checked(
    assignment: Assignment, spec: Any, name: str, shape: Sequence[int], where: str, problems: list[str]
) -> Sequence[tuple[str, ...] | None]:
    """The axes of every dim of a value, None for one that is left open; a message for each that cannot be."""
    mesh = assignment.mesh
    dims = dims_of(spec, mesh, name)
    if len(dims) > len(shape):
        problems.append(too_many_dims(name, where, spec, len(shape)))
        return ()
    dims += ((),) * (len(shape) - len(dims))
    for dim, axes in enumerate(dims):
        already = 1
        for axis in axes or ():
            devices = mesh.size_of(axis)
            if shape[dim] % (already * devices):
                problems.append(indivisible(name, axis, where, dim, shape, shape[dim], devices, already))
                break
            already *= devices
    return dims
