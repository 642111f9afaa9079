"""The user's own decisions: dims or PartitionSpecs by path pattern, and values kept whole."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any

from partir.errors import PathError, ProgramError, TilingError, word, word_all
from partir.program import no_match
from partir.sharding.actions import Action, Replicate, Tile
from partir.sharding.assignment import NEVER, Assignment
from partir.tactics.specs import by_argument, dims_of, indivisible, is_spec, spread_over, too_many_dims


class Choice(Enum):
    """A dim that is chosen for each value."""

    FIRST_DIVISIBLE_DIM = "first divisible dim"

    def __repr__(self) -> str:
        return f"partir.{self.name}"


FIRST_DIVISIBLE_DIM = Choice.FIRST_DIVISIBLE_DIM


@dataclass(frozen=True)
class Manual:
    """Shard what the patterns name: `Manual({"params/*/w": 1}, axis="model")`, or with PartitionSpecs and no axis.

    `specs` is `{pattern: dim}` with `axis`, `{pattern: PartitionSpec}`, a whole tree of specs like the arguments, or
    `FIRST_DIVISIBLE_DIM` (for all state, or as the value of a pattern). A pattern is a glob over argument paths (`*` within a
    level, `**` across); `#name` means the values that `partir.tag` named. A None in a spec leaves that dim to later tactics.

    Raises PathError for a pattern that names nothing, TilingError (all offenders at once) for a dim that is out of range or
    does not divide, or a value that is tiled on the axis already.
    """

    specs: Any
    axis: str | None = None

    def actions(self, assignment: Assignment) -> Sequence[Action]:
        if self.axis is not None:
            assignment.mesh.check(self.axis)
        wanted: list[tuple[str, int | Choice, str]] = []
        problems: list[str] = []
        for index, value in self._entries(assignment):
            _wanted(assignment, index, value, self.axis, wanted, problems)
        if problems:
            raise TilingError(word_all(problems))
        actions, problems = tiles_for(assignment, wanted)
        if problems:
            raise TilingError(word_all(problems))
        return actions

    def _entries(self, assignment: Assignment) -> list[tuple[int, Any]]:
        """(value, what is asked of it) for every value that the specs name."""
        leaves = assignment.structure.program.signature.arguments
        if self.specs is FIRST_DIVISIBLE_DIM:
            return [(i, FIRST_DIVISIBLE_DIM) for i, leaf in enumerate(leaves) if leaf.role == "state" and leaf.shape]
        if isinstance(self.specs, Mapping) and all(
            isinstance(value, int | float | str | Choice) or is_spec(value) for value in self.specs.values()
        ):
            return [(i, value) for pattern, value in self.specs.items() for i in _select(assignment, str(pattern))]
        return spread_over(by_argument(self.specs, leaves), leaves, (), "argument")


def tiles_for(assignment: Assignment, wanted: Sequence[tuple[str, int | Choice, str]]) -> tuple[list[Action], list[str]]:
    """The tiles for (value, dim, axis) triples in order, and a message for each that cannot be."""
    actions: list[Action] = []
    problems: list[str] = []
    now = assignment
    for name, dim, axis in wanted:
        if isinstance(dim, Choice):
            dim = first_divisible(now, assignment.structure.addresses.find(name), axis)
            if dim is None:
                continue
        class_ = now.class_of(assignment.structure.addresses.find(name), dim)
        taken = class_ is not None and now.claims.order[axis][class_] != NEVER
        if taken and assignment.claims.order[axis][class_] == NEVER:
            continue  # an entry before it has just tiled the class they share
        problem = refusal(now, name, dim, axis, assignment)
        if problem is not None:
            problems.append(problem)
            continue
        action = Tile(name, dim, axis)
        actions.append(action)
        now = now.apply(action)
    return actions, problems


def _select(assignment: Assignment, pattern: str) -> list[int]:
    if pattern.startswith("#"):
        addresses = assignment.structure.addresses
        found = addresses.tagged(pattern[1:])
        if not found:
            tags = {name[1:].rsplit(".", 1)[0] for name in addresses.names if name.startswith("#")}
            raise PathError(no_match(pattern[1:], [(tag,) for tag in sorted(tags)], "tag"))
        return found
    return assignment.structure.program.signature.select(pattern)


def _wanted(
    assignment: Assignment,
    index: int,
    value: Any,
    axis: str | None,
    wanted: list[tuple[str, int | Choice, str]],
    problems: list[str],
) -> None:
    """Append the (address, dim, axis) triples that one entry asks for one value; a dim to be chosen is chosen when its turn
    comes, since earlier ones may take it."""
    name = assignment.structure.addresses.names[index]
    shape = assignment.structure.tables.shapes[index]
    if is_spec(value):
        dims = dims_of(value, assignment.mesh, name)
        if len(dims) > len(shape):
            problems.append(too_many_dims(name, describe(assignment, index), value, len(shape)))
            return
        wanted += [(name, dim, own) for dim, axes in enumerate(dims) for own in axes]
        return
    if axis is None:
        raise ProgramError(
            word(
                f"Manual names dims ({name}: {value!r}) but no mesh axis",
                hint=f"Manual(..., axis={assignment.mesh.names[0]!r}), or PartitionSpecs instead of dims",
            )
        )
    if value is FIRST_DIVISIBLE_DIM:
        wanted.append((name, FIRST_DIVISIBLE_DIM, axis))
        return
    if not isinstance(value, int) or isinstance(value, bool):
        raise ProgramError(
            word(f"not a dim of {name}: {value!r}", hint="a whole number, a PartitionSpec, or partir.FIRST_DIVISIBLE_DIM")
        )
    try:
        wanted.append((name, assignment.dim_of(index, value), axis))
    except TilingError as error:
        problems.append(str(error))


def first_divisible(assignment: Assignment, value: int, axis: str) -> int | None:
    """The first dim of an argument that divides over `axis` and is not taken; None when none is."""
    if any(axis in axes for axes in assignment.argument_axes[value]):
        return None
    for dim in range(len(assignment.structure.tables.shapes[value])):
        class_ = assignment.class_of(value, dim)
        if class_ is None or class_ in assignment.scanned or assignment.claims.order[axis][class_] != NEVER:
            continue
        devices = assignment.mesh.size_of(axis, *assignment.axes_of_class(class_))
        if assignment.classes.size[class_] % devices == 0:
            return dim
    return None


def describe(assignment: Assignment, value: int) -> str:
    """Where a value is, for a message: argument number, function, type."""
    program = assignment.structure.program
    type_ = assignment.structure.tables.values[value].type
    if value < len(program.signature.arguments):
        return f"argument {value} of {program.name}, {type_}"
    return f"a value in {program.name}, {type_}"


def refusal(now: Assignment, name: str, dim: int, axis: str, before: Assignment) -> str | None:
    """Why a dim the user named cannot be tiled; None if it can."""
    value = now.structure.addresses.find(name)
    shape = now.structure.tables.shapes[value]
    where = f"{describe(now, value)}, dim {dim}"
    what = f'cannot tile {name} over mesh axis "{axis}"'
    class_ = now.class_of(value, dim)
    devices = now.mesh.size_of(axis)
    if class_ is None:
        return word(what, where=where, why=f"dim {dim} has one element")
    taken = before.argument_axes[value] if value < now.structure.tables.argument_count else ()
    if before.claims.order[axis][class_] != NEVER or any(axis in axes for axes in taken):
        by = next((a for a in before.actions if isinstance(a, Tile) and a.axis == axis), None)
        return word(
            what,
            where=where,
            why=f'it is tiled over "{axis}" already' + (f" (by {by})" if by else ""),
            hint="another axis, or leave it to the tactic that tiled it",
        )
    size = now.classes.size[class_]
    already = now.mesh.size_of(*now.axes_of_class(class_)) if now.axes_of_class(class_) else 1
    if size % (devices * already):
        return indivisible(name, axis, describe(now, value), dim, shape, size, devices, already)
    return None


@dataclass(frozen=True)
class Whole:
    """Keep the arguments that the patterns name whole on an axis, against all later tactics."""

    patterns: str | Sequence[str]
    axis: str

    def actions(self, assignment: Assignment) -> Sequence[Action]:
        assignment.mesh.check(self.axis)
        patterns = [self.patterns] if isinstance(self.patterns, str) else list(self.patterns)
        signature = assignment.structure.program.signature
        found = dict.fromkeys(index for pattern in patterns for index in signature.select(pattern))
        problems = [
            word(
                f'cannot keep {signature.arguments[index].name} whole on mesh axis "{self.axis}"',
                where=describe(assignment, index),
                why="an earlier tactic has tiled it",
                hint="put Whole before that tactic",
            )
            for index in found
            if any(self.axis in axes for axes in assignment.argument_axes[index])
        ]
        if problems:
            raise TilingError(word_all(problems))
        return [Replicate(signature.arguments[index].name, self.axis) for index in found]
