"""The user's own decisions: dims or PartitionSpecs by path pattern, and values kept replicated."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any

from partir.errors import PathError, ProgramError, TilingError, error_text, error_texts
from partir.program import no_match
from partir.sharding.actions import Action, Pin, Replicate, Tile
from partir.sharding.assignment import Assignment
from partir.sharding.indices import ValueIndex
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
    Arguments lie as asked: where two of them want an axis on dims that one op has in common, the first entry has it at the op,
    and the other argument is moved for it.

    Raises PathError for a pattern that names nothing, TilingError (all offenders at once) for a dim that is out of range or
    does not divide, a value that is tiled on the axis already, or two entries that ask different things of one value.
    """

    specs: Any
    axis: str | None = None

    def actions(self, assignment: Assignment) -> Sequence[Action]:
        if self.axis is not None:
            assignment.mesh.check(self.axis)
        wanted: list[Wanted] = []
        problems: list[str] = []
        for index, value, entry in self._entries(assignment):
            _wanted(assignment, index, value, entry, self.axis, wanted, problems)
        problems += _contradictions(assignment, wanted)
        if problems:
            raise TilingError(error_texts(problems))
        tiles, problems = tiles_for(assignment, wanted)
        pins = exact_pins(assignment, assignment.apply(*tiles), wanted, problems) if not problems else []
        if problems:
            raise TilingError(error_texts(problems))
        return [*tiles, *pins]

    def _entries(self, assignment: Assignment) -> list[tuple[ValueIndex, Any, str]]:
        """(value, what is asked of it, the entry that asks) for every value that the specs name."""
        leaves = assignment.structure.program.signature.arguments
        if self.specs is FIRST_DIVISIBLE_DIM:
            numbers = assignment.structure.tables.arguments
            chosen = [i for i in numbers if leaves[i].role == "state" and leaves[i].shape]
            return [(i, FIRST_DIVISIBLE_DIM, repr(self.specs)) for i in chosen]
        if isinstance(self.specs, Mapping) and all(
            isinstance(value, int | float | str | Choice) or is_spec(value) for value in self.specs.values()
        ):
            entries = [(str(pattern), value) for pattern, value in self.specs.items()]
            return [(i, value, f"{pattern!r}: {value!r}") for pattern, value in entries for i in _select(assignment, pattern)]
        found = spread_over(by_argument(self.specs, leaves), leaves, (), "argument")
        return [(ValueIndex(i), spec, f"{leaves[i].name}: {spec!r}") for i, spec in sorted(found, key=lambda item: item[0])]


@dataclass(frozen=True)
class Wanted:
    """That `dim` of the value at an address is over `axis`, and the entry of a `Manual` that asks for it."""

    name: str
    dim: int | Choice
    axis: str
    entry: str = ""


def _contradictions(assignment: Assignment, wanted: Sequence[Wanted]) -> list[str]:
    """A message for each value of which two entries ask different things: an axis on two dims, or other axes for one dim."""
    by_value: dict[str, dict[str, dict[int, list[str]]]] = {}
    for item in wanted:
        if isinstance(item.dim, int):
            by_value.setdefault(item.name, {}).setdefault(item.entry, {}).setdefault(item.dim, []).append(item.axis)
    problems: list[str] = []
    for name, entries in by_value.items():
        for (first, said), (other, says) in itertools.combinations(entries.items(), 2):
            why = _contradiction(said, says)
            if why is not None:
                problems.append(
                    error_text(
                        f"two entries of Manual ask different things of {name}",
                        where=f"{first} and {other}; {describe(assignment, assignment.structure.addresses.find(name))}",
                        why=why,
                        hint="patterns that do not both match it",
                    )
                )
    return problems


def _contradiction(said: Mapping[int, Sequence[str]], says: Mapping[int, Sequence[str]]) -> str | None:
    """What two entries disagree about, each the axes it gives to dims; None where they do not."""
    dim_of = {axis: dim for dim, axes in said.items() for axis in axes}
    for dim, axes in says.items():
        torn = next((axis for axis in axes if dim_of.get(axis, dim) != dim), None)
        if torn is not None:
            return f'mesh axis "{torn}" is to cut dim {dim_of[torn]} by the one, dim {dim} by the other'
        if said.get(dim, axes) != axes:
            return f"dim {dim} is to lie over {', '.join(said[dim])} by the one, over {', '.join(axes)} by the other"
    return None


def tiles_for(assignment: Assignment, wanted: Sequence[Wanted]) -> tuple[list[Action], list[str]]:
    """The tiles for what is wanted, in order, and a message for each that cannot be."""
    actions: list[Action] = []
    problems: list[str] = []
    now = assignment
    for item in wanted:
        name, dim, axis = item.name, item.dim, item.axis
        if isinstance(dim, Choice):
            dim = first_divisible(now, assignment.structure.addresses.find(name), axis)
            if dim is None:
                continue
        problem = refusal(now, name, dim, axis, assignment)
        if problem is not None:
            problems.append(problem)
            continue
        class_ = now.class_of(now.structure.addresses.find(name), dim)
        if class_ is not None and now.is_claimed(class_, axis):
            continue  # an entry before it, or an earlier tactic, has tiled the class they share
        action = Tile(name, dim, axis)
        actions.append(action)
        now = now.apply(action)
    return actions, problems


def exact_pins(before: Assignment, after: Assignment, wanted: Sequence[Wanted], problems: list[str]) -> list[Action]:
    """Pins for the arguments that tiles alone do not lay as asked: where another class that was asked for has their axis. A
    message for each that an earlier `Replicate` keeps replicated, or that does not divide beside what it is cut over
    already."""
    count, find = after.structure.tables.argument_count, after.structure.addresses.find
    asked: dict[tuple[ValueIndex, int], list[str]] = {}
    for item in wanted:
        value = find(item.name)
        if value < count and isinstance(item.dim, int):
            asked.setdefault((value, item.dim % len(after.structure.tables.shapes[value])), []).append(item.axis)
    kept = {(find(a.value), a.axis): a for a in before.actions if isinstance(a, Replicate)}
    pins: list[Action] = []
    for (value, dim), axes in asked.items():
        named = [axis for axis in dict.fromkeys(axes)]
        lies = after.lies(value, dim)
        if [axis for axis in lies if axis in named] == named:
            continue
        name, where = after.structure.addresses.names[value], f"{describe(after, value)}, dim {dim}"
        size = after.structure.tables.shapes[value][dim]
        whole = next((axis for axis in named if (value, axis) in kept), None)
        if whole is not None:
            what = f'cannot tile {name} over mesh axis "{whole}"'
            hint = "leave it out, or put it before the tactic that keeps it replicated"
            problems.append(
                error_text(what, where=where, why=f"it is kept replicated over it (by {kept[value, whole]})", hint=hint)
            )
            continue
        all_axes = [axis for axis in before.lies(value, dim) if axis not in named] + named
        if size % after.mesh.size_of(*all_axes):
            devices = after.mesh.size_of(named[-1])
            already = after.mesh.size_of(*all_axes) // devices
            shape = after.structure.tables.shapes[value]
            problems.append(indivisible(name, named[-1], where, dim, shape, size, devices, already))
            continue
        pins.append(Pin(name, dim, ",".join(all_axes)))
    return pins


def _select(assignment: Assignment, pattern: str) -> list[ValueIndex]:
    """The values that a pattern names. Raises PathError for one that names none."""
    if pattern.startswith("#"):
        addresses = assignment.structure.addresses
        found = addresses.tagged(pattern[1:])
        if not found:
            tags = {name[1:].rsplit(".", 1)[0] for name in addresses.names if name.startswith("#")}
            raise PathError(no_match(pattern[1:], [(tag,) for tag in sorted(tags)], "tag"))
        return found
    return [ValueIndex(i) for i in assignment.structure.program.signature.select(pattern)]


def _wanted(
    assignment: Assignment,
    index: ValueIndex,
    value: Any,
    entry: str,
    axis: str | None,
    wanted: list[Wanted],
    problems: list[str],
) -> None:
    """Append what one entry asks for one value; a dim to be chosen is chosen when its turn comes, since earlier ones may take
    it."""
    name = assignment.structure.addresses.names[index]
    shape = assignment.structure.tables.shapes[index]
    if is_spec(value):
        dims = dims_of(value, assignment.mesh, name)
        if len(dims) > len(shape):
            problems.append(too_many_dims(name, describe(assignment, index), value, len(shape)))
            return
        wanted += [Wanted(name, dim, own, entry) for dim, axes in enumerate(dims) for own in axes or ()]
        return
    if axis is None:
        raise ProgramError(
            error_text(
                f"Manual names dims ({name}: {value!r}) but no mesh axis",
                hint=f"Manual(..., axis={assignment.mesh.names[0]!r}), or PartitionSpecs instead of dims",
            )
        )
    if value is FIRST_DIVISIBLE_DIM:
        wanted.append(Wanted(name, FIRST_DIVISIBLE_DIM, axis, entry))
        return
    if not isinstance(value, int) or isinstance(value, bool):
        raise ProgramError(
            error_text(f"not a dim of {name}: {value!r}", hint="a whole number, a PartitionSpec, or partir.FIRST_DIVISIBLE_DIM")
        )
    try:
        wanted.append(Wanted(name, assignment.dim_of(index, value), axis, entry))
    except TilingError as error:
        problems.append(str(error))


def first_divisible(assignment: Assignment, value: ValueIndex, axis: str) -> int | None:
    """The first dim of an argument that divides over `axis` and is not taken; None when none is."""
    if assignment.has_axis(value, axis):
        return None
    return next((dim.dim for dim in assignment.dims_of([value]) if assignment.can_tile(dim.class_, axis)), None)


def describe(assignment: Assignment, value: ValueIndex) -> str:
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
        return error_text(what, where=where, why=f"dim {dim} has one element")
    is_argument = value < now.structure.tables.argument_count
    if is_argument and axis in before.lies(value, dim):
        return None
    if before.is_claimed(class_, axis) or (is_argument and before.has_axis(value, axis)):
        by = next((a for a in before.actions if isinstance(a, Tile) and a.axis == axis), None)
        return error_text(
            what,
            where=where,
            why=f'it is tiled over "{axis}" already' + (f" (by {by})" if by else ""),
            hint="another axis, or leave it to the tactic that tiled it",
        )
    if not now.is_claimed(class_, axis):
        found = now.apply(Tile(name, dim, axis)).claims.undivided[len(now.claims.undivided) :]
        for item in found:
            already = item.devices // devices
            size = shape[dim] if shape[dim] % item.devices else item.size
            return indivisible(name, axis, describe(now, value), dim, shape, size, devices, already)
    return None
