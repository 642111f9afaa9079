"""Arguments that lie on several devices already, by `jax.device_put` or as an earlier step left them.

Where the user asks for no other layout - in `in_shardings`, or by a tactic of the schedule - an argument stays as it came in:
its layout is taken like an entry of `in_shardings`, after the schedule. A search decides all arguments.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import jax
from jax.core import Tracer
from jax.sharding import NamedSharding, PartitionSpec

from partir.errors import TilingError
from partir.frontend.memories import host_kind
from partir.mesh import Mesh
from partir.program import Leaf
from partir.sharding.actions import Action, Pin, Replicate
from partir.sharding.assignment import Assignment
from partir.sharding.indices import ValueIndex
from partir.sharding.layout import spec_text
from partir.tactics.other_meshes import layout_over
from partir.tactics.pins import pins_of
from partir.tactics.specs import by_argument, spread_over
from partir.tactics.tactic import AppliedTactic, Judging

Layouts = tuple[tuple[int, Any], ...]
"""(argument number, sharding) of arguments that lie somewhere already."""


@dataclass(frozen=True, repr=False)
class Kept:
    """The last item of every schedule: `specs`, by argument number, stay as they came in, as far as they can."""

    specs: tuple[tuple[int, PartitionSpec], ...]

    def actions(self, assignment: Assignment) -> Sequence[Action]:
        """Those of all of them; where one cannot be, those of each that can."""
        try:
            return self._of(assignment, self.specs)
        except TilingError:
            actions: list[Action] = []
            for entry in self.specs:
                if self.refusal(assignment.apply(*actions), entry) is None:
                    actions += self._of(assignment.apply(*actions), (entry,))
            return actions

    def refusal(self, assignment: Assignment, entry: tuple[int, PartitionSpec]) -> str | None:
        """Why an argument cannot stay as it came in; None where it can."""
        try:
            self._of(assignment, (entry,))
        except TilingError as error:
            return str(error)
        return None

    def _of(self, assignment: Assignment, specs: Sequence[tuple[int, PartitionSpec]]) -> Sequence[Action]:
        leaves = assignment.structure.program.signature.arguments
        tree: dict[str, Any] = {}
        for number, spec in specs:
            *above, last = leaves[number].path
            node = tree
            for level in above:
                node = node.setdefault(level, {})
            node[last] = spec
        found = pins_of(assignment, tree, None).actions
        return [action for action in found if action not in assignment.actions]

    def __repr__(self) -> str:
        count = len(self.specs)
        return f"{count} argument{'s' if count > 1 else ''} as {'they' if count > 1 else 'it'} came in"


def committed(leaf: Any) -> Any:
    """The sharding that a caller gave an argument, over several devices or in host memory; None for one that may be placed
    freely."""
    if isinstance(leaf, jax.Array):
        sharding = leaf.sharding if not isinstance(leaf, Tracer) and leaf.committed else None
    else:
        sharding = leaf.sharding if isinstance(leaf, jax.ShapeDtypeStruct) else None
    return sharding if sharding is not None and (sharding.num_devices > 1 or host_kind(sharding)) else None


def layouts_of(leaves: Sequence[Any]) -> Layouts:
    """The layouts of those of the arguments that have one."""
    found = ((number, committed(leaf)) for number, leaf in enumerate(leaves))
    return tuple((number, sharding) for number, sharding in found if sharding is not None)


def spoken_of(in_shardings: Any, leaves: Sequence[Leaf]) -> frozenset[int]:
    """The arguments that `in_shardings` speak of."""
    if in_shardings is None:
        return frozenset()
    return frozenset(number for number, _ in spread_over(by_argument(in_shardings, leaves), leaves, (), "argument"))


def free_arguments(start: Assignment, decided: Assignment, in_shardings: Any) -> frozenset[int]:
    """The arguments that neither `in_shardings` nor the decisions since `start` speak of."""
    leaves, find = start.structure.program.signature.arguments, start.structure.addresses.find
    given = set(start.actions)
    spoken = {find(a.value) for a in decided.actions if isinstance(a, Replicate | Pin) and a not in given}
    spoken |= spoken_of(in_shardings, leaves)
    arguments = start.structure.tables.arguments
    return frozenset(n for n in arguments if n not in spoken and _lies(start, n) == _lies(decided, n))


def _lies(assignment: Assignment, argument: ValueIndex) -> tuple[tuple[str, ...], ...]:
    """The axes of each dim of an argument."""
    rank = len(assignment.structure.tables.shapes[argument])
    return tuple(assignment.lies(argument, dim) for dim in range(rank))


def deciders(start: Assignment, stages: Sequence[AppliedTactic], names: Sequence[str], in_shardings: Any) -> dict[int, str]:
    """What first spoke of each argument: `in_shardings`, or a stage of a schedule by its name."""
    find, leaves = start.structure.addresses.find, start.structure.program.signature.arguments
    found = dict.fromkeys(spoken_of(in_shardings, leaves), "in_shardings")
    before = start
    for stage, name in zip(stages, names, strict=True):
        after = stage.assignment
        spoken = [n for n in start.structure.tables.arguments if _lies(before, n) != _lies(after, n)]
        spoken += [find(a.value) for a in after.actions if isinstance(a, Replicate | Pin) and a not in before.actions]
        spoken += start.structure.tables.arguments if isinstance(stage.tactic, Judging) else ()
        found = dict.fromkeys(spoken, name) | found
        before = after
    return found


def kept(assignment: Assignment, layouts: Layouts, free: frozenset[int]) -> Kept:
    """What of the layouts that came in stays: those of free arguments that can be said over the mesh."""
    leaves = assignment.structure.program.signature.arguments
    own = [(n, sharding) for n, sharding in layouts if n in free and sharding.num_devices > 1]
    specs = [(n, layout_over(sharding, leaves[n].shape, assignment.mesh)) for n, sharding in own]
    return Kept(tuple((number, spec) for number, spec in specs if spec is not None))


def came_as(sharding: Any, leaf: Leaf, mesh: Mesh) -> str:
    """A layout as messages name it: its spec over the mesh, else over its own."""
    spec = layout_over(sharding, leaf.shape, mesh)
    if spec is not None:
        text = spec_text(spec)
    elif isinstance(sharding, NamedSharding):
        text = f"{spec_text(sharding.spec)} over {Mesh.of(sharding.mesh).described(mesh)}"
    else:
        text = f"{type(sharding).__name__} over {sharding.num_devices} device{'s' if sharding.num_devices > 1 else ''}"
    return in_memory(text, host_kind(sharding))


def moved(leaf: Leaf, sharding: Any, spec: PartitionSpec, mesh: Mesh) -> str:
    """The message for an argument that comes in with one layout and is laid by another."""
    return f"{leaf.name} comes in as {came_as(sharding, leaf, mesh)} and is moved to {in_memory(spec_text(spec), leaf.memory)}"


def in_memory(text: str, kind: str) -> str:
    """A layout with the kind of memory, where that is not the device's own."""
    return f"{text} in {kind} memory" if kind else text


def lines(
    assignment: Assignment, specs: Sequence[Any], layouts: Layouts, free: frozenset[int], deciders: Mapping[int, str]
) -> list[str]:
    """For each argument that came in with a layout, what it came as, what it lies as (`specs`), and why where these differ."""
    leaves, mesh = assignment.structure.program.signature.arguments, assignment.mesh
    moved: list[str] = []
    stay: list[str] = []
    for number, sharding in layouts:
        leaf = leaves[number]
        if sharding.num_devices == 1:
            then = "stays there" if leaf.memory == host_kind(sharding) else "is moved to the device: in_shardings decides it"
            stay.append(f"{leaf.name} came in {host_kind(sharding)} memory and {then}")
            continue
        came, lies = came_as(sharding, leaf, mesh), in_memory(spec_text(list(specs[number])[: len(leaf.shape)]), leaf.memory)
        if came == lies:
            stay.append(f"{leaf.name} came in as {came} and stays so")
            continue
        if number not in free:
            why = f"{deciders[number]} decides it"
        elif layout_over(sharding, leaf.shape, mesh) is None:
            why = f"no axes of {mesh!r} cut alike"
        else:
            why = "what was decided before leaves no room for that"
        moved.append(f"{leaf.name} came in as {came} and lies as {lies}: {why}")
    return moved + stay
