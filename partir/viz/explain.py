"""Explains how values got their sharding, and what each collective on them is for."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

from partir.errors import PathError
from partir.program import Leaf, origin_of
from partir.sharding.actions import GatherOnce, Pin, ReduceIn, Replicate
from partir.sharding.claims import NEVER
from partir.sharding.indices import ClassId, ValueIndex
from partir.sharding.layout import local_shape, spec_of, spec_text
from partir.sharding.plan import COLLECTIVES, Plan, Reduction, Reshard
from partir.viz.report import bytes_text
from partir.viz.table import Table

Steps = Sequence[tuple[str, int]]
"""Each tactic as its user writes it, with the number of all actions up to and including its own."""

REACH = 64
"""How many ops back from a result its gradient is looked for."""


def explanation(plan: Plan, steps: Steps, path: str) -> Table:
    """Rows for each value that `path` (a pattern, or the address of an inner value) names.

    One row has its sharding; one per mesh axis says which dim is sharded over it and by whose decision, or why none is; one per
    collective on the value (or, for state, on its gradient) says what it is for.
    """
    values = _named(plan, path)
    rows: list[tuple[str, str, str]] = []
    for value in values:
        rows.append((_value_text(plan, value), "sharded as", _sharding_text(plan, value)))
        rows += [("", f'on "{axis}"', _decided(plan, steps, value, axis)) for axis in plan.assignment.mesh.names]
        rows += [("", kind, why) for kind, why in _collectives(plan, value)]
    return Table(f"how {path} got its sharding", ("value", "what", "how and why"), tuple(rows))


def _named(plan: Plan, path: str) -> list[ValueIndex]:
    tables = plan.assignment.structure.tables
    addresses = plan.assignment.structure.addresses
    if path[:1] in "#@":
        return [addresses.find(path)]
    try:
        return [ValueIndex(i) for i in tables.program.signature.select(path)]
    except PathError:
        tagged = addresses.tagged(path)
        if not tagged:
            raise
        return tagged


def _value_text(plan: Plan, value: ValueIndex) -> str:
    structure = plan.assignment.structure
    leaf = _leaf(plan, value)
    shape = list(structure.tables.shapes[value])
    return f"{leaf.name}: {leaf.dtype}{shape}" if leaf is not None else f"{structure.addresses.names[value]}: {shape}"


def _leaf(plan: Plan, value: ValueIndex) -> Leaf | None:
    tables = plan.assignment.structure.tables
    return tables.program.signature.arguments[value] if value < tables.argument_count else None


def _sharding_text(plan: Plan, value: ValueIndex) -> str:
    """A value's spec and its bytes on a device; of a view, the value that it is a view of."""
    tables = plan.assignment.structure.tables
    view = tables.views.get(value)
    if view is not None:
        return f"a view of {plan.assignment.structure.addresses.names[view.source]}"
    layout = plan.arguments[value] if value < tables.argument_count else plan.layouts[value]
    if not layout:
        return "replicated on every device"
    total = tables.bytes_of[value]
    elements = math.prod(tables.shapes[value])
    own = total * math.prod(local_shape(layout, plan.assignment.mesh.axes)) // elements if elements else 0
    return f"{spec_text(spec_of(layout))}, {bytes_text(own)} of {bytes_text(total)} on each device"


def _decided(plan: Plan, steps: Steps, value: ValueIndex, axis: str) -> str:
    """Which dim is sharded over an axis, and by whose decision; or why no dim is."""
    assignment = plan.assignment
    structure, claims = assignment.structure, assignment.reach
    tables, atoms = structure.tables, structure.atoms
    if value in tables.views:
        value = tables.views[value].source
    layout = plan.layouts[value]
    dims = [d for d, segments in enumerate(layout) if any(axis in axes for _, axes in segments)]
    pin = assignment.pins.get((value, dims[0])) if dims else None
    if pin is not None:
        return f"dim {dims[0]} ({tables.shapes[value][dims[0]]}), asked for {_by(plan, steps, pin)}"
    if dims:
        class_ = next((c for c in _classes(plan, value, dims[0]) if claims.order[axis][c] != NEVER), None)
        size = tables.shapes[value][dims[0]]
        return (
            f"dim {dims[0]} ({size}), {_by(plan, steps, int(claims.order[axis][class_]))}"
            if class_ is not None
            else (f"dim {dims[0]} ({size}), as the op that computes it leaves it")
        )
    for position, action in enumerate(assignment.actions):
        if isinstance(action, Replicate) and action.axis == axis and structure.addresses.find(action.value) == value:
            return f"replicated: kept so {_by(plan, steps, position)}"
    for dim in range(len(tables.shapes[value])):
        for part, _ in enumerate(atoms.atoms_of(value, dim)):
            class_ = assignment.classes.class_of(value, dim, part)
            if claims.order[axis][class_] == NEVER:
                continue
            by = _by(plan, steps, int(claims.order[axis][class_]))
            if not claims.divides[axis][class_]:
                devices = assignment.mesh.size_of(axis)
                return f"replicated: dim {dim} ({tables.shapes[value][dim]}) does not divide by {devices}, asked for {by}"
            return f"replicated: another dim has the axis at the op that computes it; elsewhere dim {dim} has it, {by}"
    return "replicated: no decision shards it"


def _classes(plan: Plan, value: ValueIndex, dim: int) -> Iterator[ClassId]:
    """The dimension classes of a dim, one for each of its atoms, major first."""
    atoms, classes = plan.assignment.structure.atoms, plan.assignment.classes
    for part, _ in enumerate(atoms.atoms_of(value, dim)):
        yield classes.class_of(value, dim, part)


def _by(plan: Plan, steps: Steps, position: int) -> str:
    """Who made the action number `position`: the tactic, and the action itself."""
    # Claims after the last action are not actions: they come from fixed results, and from joined dims beyond an op that splits
    # them (see `Assignment.reach`).
    if position >= len(plan.assignment.actions):
        return "by the spec of a result, or as a part of a larger dim that an op splits"
    action = plan.assignment.actions[position]
    name = next((tactic for tactic, count in steps if position < count), "the program itself")
    if isinstance(action, Replicate | GatherOnce | Pin | ReduceIn):
        return f"by {name}"
    return f"by {name} ({type(action).__name__} dim {action.dim} of {action.value})"


def _collectives(plan: Plan, value: ValueIndex) -> Iterator[tuple[str, str]]:
    """The collectives on a value, on the gradient that updates it, and on its next value, each with what it is for."""
    tables = plan.assignment.structure.tables
    source = tables.views[value].source if value in tables.views else value
    reduced = plan.reductions.get(source)
    if reduced is not None:
        yield from _reduced(plan, reduced, "")
    for reshard in plan.reshards.values():
        if reshard.value == source:
            yield from _resharded(plan, reshard)
    for inner in _updates(plan, value):
        yield from _reduced(plan, plan.reductions[inner], "its gradient: ")
    results = [result for result, argument in tables.program.signature.argument_of_result.items() if argument == value]
    for result in results:
        view = tables.outputs[result]
        reshard = plan.reshard_for(-1 - result, 0)
        if reshard is not None and view is not None and view.source != source:
            yield from _resharded(plan, reshard)


def _updates(plan: Plan, argument: ValueIndex) -> Iterator[ValueIndex]:
    """The reduced values that the next value of an argument is computed from, if their dims have the same sizes in any order.

    These are its gradients. The walk back from the result ends at reductions, and after `REACH` ops.
    """
    tables = plan.assignment.structure.tables
    signature = tables.program.signature
    sizes = sorted(tables.shapes[argument])
    for result, paired in signature.argument_of_result.items():
        view = tables.outputs[result]
        if paired != argument or view is None:
            continue
        seen: set[ValueIndex] = set()
        frontier = [view.source]
        for _ in range(REACH):
            following: list[ValueIndex] = []
            for value in frontier:
                if value in seen or value < tables.argument_count:
                    continue
                seen.add(value)
                if value in plan.reductions:
                    yield value
                    continue
                row = tables.rows[tables.producer[value]]
                following += [v.source for v in row.operands if v is not None and sorted(tables.shapes[v.source]) == sizes]
            frontier = following


def _reduced(plan: Plan, reduction: Reduction, of: str) -> Iterator[tuple[str, str]]:
    """The steps of a reduction, each with the op whose result it reduces; `of` is put before it."""
    tables = plan.assignment.structure.tables
    op = tables.rows[tables.producer[reduction.value]].op
    size = bytes_text(tables.bytes_of[reduction.value])
    for step in reduction.steps:
        axes = " and ".join(step.axes)
        made = f", made in {step.dtype}" if step.dtype is not None else ""
        summed = {"add": "summed over", None: "summed over"}.get(step.reduction, f"{step.reduction} over")
        yield (
            step.kind,
            f'{of}{op.name.rsplit(".", 1)[-1]} in {_where(op)} {summed} the devices of "{axes}"{made}; {size} in all',
        )


def _resharded(plan: Plan, reshard: Reshard) -> Iterator[tuple[str, str]]:
    """The steps of a reshard, each with the op (or the result) that wants the other sharding."""
    tables = plan.assignment.structure.tables
    size = bytes_text(tables.bytes_of[reshard.value])
    if reshard.row >= 0:
        op = tables.rows[reshard.row].op
        shared = tables.of_state_alone[reshard.value] and not reshard.phase
        wants = f"{op.name.rsplit('.', 1)[-1]} in {_where(op)}{', and later phases, read' if shared else ' reads'} it"
    else:
        wants = f"{tables.program.signature.results[-1 - reshard.row].name} is returned"
    before, after = (spec_text(spec_of(layout)) if layout else "P()" for layout in (reshard.before, reshard.after))
    for step in reshard.steps:
        if step.kind in COLLECTIVES:
            axes = " and ".join(step.axes)
            yield step.kind, f'{wants} as {after}, it is sharded as {before}: over "{axes}"; {size} in all'


def _where(op: object) -> str:
    """The scope, phase and source line of an op."""
    origin = origin_of(op)  # type: ignore[reportArgumentType]
    phase = "" if origin.phase.data == "forward" else f" [{origin.phase.data}]"
    at = f" ({origin.source.data})" if origin.source.data else ""
    return f"{origin.scope.data or 'the program'}{phase}{at}"
