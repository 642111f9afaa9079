"""Reports on a partitioning: tables by tactic and by argument, collectives by scope, conflicts, and what stayed replicated."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import MISSING, fields, is_dataclass

from partir.cost.estimate import estimate
from partir.cost.target import Target
from partir.mesh import Mesh
from partir.program import Leaf, Program, origin_of, type_bytes
from partir.sharding.assignment import Assignment
from partir.sharding.indices import RegionId
from partir.sharding.layout import Layout, local_shape, spec_of, spec_text
from partir.sharding.plan import COLLECTIVES, Plan
from partir.sharding.reshard import Step
from partir.viz.repeats import together
from partir.viz.table import Table

MANY = 8
"""How many lines of one kind a report shows; it only counts the rest."""


def counts_text(counts: Mapping[str, int]) -> str:
    """Counts of collectives by kind in one line: `38 all_reduce, 2 all_gather`, or `none`."""
    return ", ".join(f"{count} {kind}" for kind, count in counts.items()) or "none"


def call_text(item: object) -> str:
    """A tactic as its user writes it, without fields at their default and fields that the user cannot give.

    Anything else as its `repr`.

    >>> from partir.tactics import Search, ZeRO
    >>> call_text(ZeRO("data", stage=3))
    "ZeRO('data', stage=3)"
    >>> from partir.search import MCTS
    >>> call_text(Search("data", MCTS(20)))
    "Search('data', algorithm=MCTS(20))"
    """
    if isinstance(item, Target):
        return repr(item.name)
    if not is_dataclass(item) or not repr(item).startswith(f"{type(item).__name__}("):
        return repr(item)
    first, *rest = (field for field in fields(item) if field.repr and field.init)
    texts = [repr(getattr(item, first.name))]
    for field in rest:
        value = getattr(item, field.name)
        if field.default is MISSING or value != field.default:
            texts.append(f"{field.name}={call_text(value)}")
    return f"{type(item).__name__}({', '.join(texts)})"


def mesh_text(mesh: Mesh) -> str:
    """The axes of a mesh, major first: `data=4, model=2`."""
    return ", ".join(f"{name}={size}" for name, size in mesh.axes)


def sharded_arguments(plan: Plan) -> int:
    """The number of arguments that are sharded over any axis."""
    return sum(bool(spec_of(layout)) for layout in plan.arguments)


def bytes_text(count: int) -> str:
    """A number of bytes in three digits with a decimal unit.

    >>> bytes_text(512), bytes_text(3_989_508), bytes_text(80_000_000_000)
    ('512 B', '3.99 MB', '80.0 GB')
    """
    if count < 1000:
        return f"{count} B"
    units = ("kB", "MB", "GB", "TB", "PB")
    power = next((n for n in range(1, len(units)) if count < 999.5 * 1000**n), len(units))
    return f"{f'{count / 1000**power:#.3g}'.rstrip('.')} {units[power - 1]}"


def argument_bytes(plan: Plan, *, donated: bool = False) -> int:
    """The bytes that one device holds of all arguments (or of donated ones), without those in host memory."""
    tables, sizes = plan.assignment.structure.tables, plan.assignment.mesh.axes
    total = 0
    for argument, (leaf, layout) in enumerate(zip(tables.program.signature.arguments, plan.arguments, strict=True)):
        if (leaf.donated or not donated) and not leaf.memory:
            elements = math.prod(leaf.shape)
            local = math.prod(local_shape(layout, sizes)) if leaf.shape else 1
            total += tables.bytes_of[argument] * local // elements if elements else 0
    return total


def seconds_text(seconds: float) -> str:
    """A time in three digits with a unit.

    >>> seconds_text(0.0123), seconds_text(3.2e-6), seconds_text(75.0)
    ('12.3 ms', '3.20 us', '75.0 s')
    """
    unit, factor = next((u for u in (("s", 1.0), ("ms", 1e3), ("us", 1e6)) if seconds * u[1] >= 0.9995), ("ns", 1e9))
    return f"{f'{seconds * factor:#.3g}'.rstrip('.')} {unit}"


def tactics_table(
    program: Program, stages: Sequence[tuple[str, Plan]], notes: Sequence[str], target: Target | None = None
) -> Table:
    """A row per tactic, given the plan after each (`stages`): how many arguments are sharded, the bytes of all arguments on a
    device, with a target the peak memory and the step time, and the collectives of the program."""
    total = len(program.signature.arguments)
    kinds = [kind for kind in COLLECTIVES if any(kind in plan.collectives for _, plan in stages)]
    rows = [
        (
            name,
            f"{sharded_arguments(plan)} of {total}",
            bytes_text(argument_bytes(plan)),
            *(_priced(plan, target) if target is not None else ()),
            *(str(plan.collectives.get(kind, 0)) for kind in kinds),
        )
        for name, plan in stages
    ]
    priced = ("peak memory", "step time") if target is not None else ()
    on = f", {target.name}" if target is not None else ""
    return Table(
        f"{program.name} on mesh {mesh_text(stages[-1][1].assignment.mesh)}{on}",
        ("tactic", "sharded arguments", "bytes per device", *priced, *kinds),
        tuple(rows),
        tuple(notes),
        frozenset({"sharded arguments", "bytes per device", *priced, *kinds}),
    )


def _priced(plan: Plan, target: Target) -> tuple[str, str]:
    found = estimate(plan, target)
    peak = bytes_text(found.peak_bytes)
    return peak if found.fits else f"{peak} (too much)", seconds_text(found.step_seconds)


def arguments_table(program: Program, plan: Plan, *, brief: bool = False) -> Table:
    """A row per argument: dtype, shape, role and spec. `brief` puts the same argument of repeated layers into one row."""
    leaves = program.signature.arguments
    cells = [
        (leaf.dtype, "x".join(map(str, leaf.shape)), leaf.role, _place_text(leaf, layout))
        for leaf, layout in zip(leaves, plan.arguments, strict=True)
    ]
    names = [leaf.name for leaf in leaves]
    if brief:
        rows = [(r.name, *map(str, r.cells)) for r in together(names, cells)]
    else:
        rows = [(name, *own) for name, own in zip(names, cells, strict=True)]
    return Table(f"arguments of {program.name}", ("argument", "dtype", "shape", "role", "spec"), tuple(rows))


def _place_text(leaf: Leaf, layout: Layout) -> str:
    """The spec of an argument, and the memory kind if it is not kept in device memory."""
    return f"{spec_text(spec_of(layout))}{f' in {leaf.memory}' if leaf.memory else ''}"


def host_lines(plan: Plan) -> list[str]:
    """A line for each kind of host memory: how many arguments or results are kept in it, and their bytes per device."""
    tables, sizes = plan.assignment.structure.tables, plan.assignment.mesh.axes
    signature = tables.program.signature
    found: dict[tuple[str, str], list[str]] = {}
    moved: Counter[tuple[str, str]] = Counter()
    for what, leaves, layouts in (
        ("argument", signature.arguments, plan.arguments),
        ("result", signature.results, plan.outputs),
    ):
        for number, (leaf, layout) in enumerate(zip(leaves, layouts, strict=True)):
            if leaf.memory:
                found.setdefault((leaf.memory, what), []).append(leaf.name)
                part = math.prod(local_shape(layout, sizes)) if leaf.shape else 1
                value = tables.values[number] if what == "argument" else tables.root.returns[number]
                moved[leaf.memory, what] += type_bytes(value.type) * part // max(1, math.prod(leaf.shape))
    return [
        f"{len(names)} {what}{'s' if len(names) > 1 else ''} in {kind} memory ({', '.join(names[:3])}"
        f"{', ...' if len(names) > 3 else ''}): {bytes_text(moved[kind, what])} a device are moved "
        f"{'to it as a step begins' if what == 'argument' else 'there as a step ends'}, which no estimate of time counts"
        for (kind, what), names in found.items()
    ]


def collectives_by_scope(plan: Plan) -> dict[str, dict[str, int]]:
    """Counts of collectives by kind, for each scope (and phase) whose ops need them; `(results)` has those on results.

    Collectives in a loop body count once per iteration.
    """
    tables = plan.assignment.structure.tables
    found: dict[str, Counter[str]] = {}

    def add(row: int, steps: Sequence[Step], region: RegionId) -> None:
        kinds = [step.kind for step in steps if step.kind != "all_slice"]
        if not kinds:
            return
        if row < 0:
            name = "(results)"
        else:
            scope, phase = tables.scope(tables.rows[row]), tables.phase(tables.rows[row])
            name = f"{scope or '(program)'}" + ("" if phase == "forward" else f" [{phase}]")
        counts, times = found.setdefault(name, Counter()), tables.times(region)
        for kind in kinds:
            counts[kind] += times

    for value, reduction in plan.reductions.items():
        add(tables.producer[value], reduction.steps, tables.region_of[value])
    for reshard in plan.reshards.values():
        add(reshard.row, reshard.steps, reshard.region)
    return {name: {kind: c[kind] for kind in COLLECTIVES if c[kind]} for name, c in sorted(found.items())}


def shortened(lines: Sequence[str], heading: str) -> list[str]:
    """The first few lines under a heading, without duplicates, with those of repeated layers as one; [] without lines."""
    unique = [repeated.name for repeated in together(list(dict.fromkeys(lines)), [()] * len(set(lines)))]
    if not unique:
        return []
    shown = [heading, *(f"  {line}" for line in unique[:MANY])]
    return shown + ([f"  and {len(unique) - MANY} more"] if len(unique) > MANY else [])


def conflict_lines(assignment: Assignment) -> list[str]:
    """A line per scope and axis in conflict: the dim that has the axis there, those that do not, and the number of ops."""
    classes, structure = assignment.classes, assignment.structure
    found: Counter[tuple[str, str, str, str]] = Counter()
    names: dict[int, str] = {}

    def name(factor: int) -> str:
        class_ = int(classes.of_factor[factor]) if factor >= 0 else -1
        if class_ not in names:
            members = classes.arguments_by_class[class_] if class_ >= 0 else []
            if members:
                names[class_] = f"{structure.addresses.names[members[0][0]]}:{members[0][1]}"
            else:
                names[class_] = f"an inner dim of {classes.size[class_]}" if class_ >= 0 else "nobody"
        return names[class_]

    for conflict in assignment.conflicts:
        scope = structure.tables.scope(structure.tables.rows[conflict.row]) or "(program)"
        losers = ", ".join(sorted({name(f) for f in conflict.losers}))
        found[scope, conflict.axis, name(conflict.winner), losers] += 1
    return [
        f'{scope}: {winner} has "{axis}", {losers} {"do" if "," in losers else "does"} not ({count} ops)'
        for (scope, axis, winner, losers), count in sorted(found.items())
    ]


def replicated_lines(plan: Plan) -> list[str]:
    """What stayed replicated and why: sizes that do not divide, constraints that could not be met, and gathers for ops that
    cannot work on shards of a dim."""
    assignment = plan.assignment
    tables = assignment.structure.tables
    lines = [str(item) for item in assignment.claims.undivided]
    lines += [*assignment.structure.wishes(assignment.mesh).refused, *tables.program.notes]
    closed: dict[tuple[str, str, str], list[int]] = {}
    for reshard in plan.reshards.values():
        if reshard.row < 0 or not any(step.kind == "all_gather" for step in reshard.steps):
            continue
        row = tables.rows[reshard.row]
        if not any(assignment.structure.atoms.shapes[reshard.row].closed):
            continue
        origin = origin_of(row.op)
        key = (row.op.name.rsplit(".", 1)[-1], origin.scope.data or "(program)", origin.source.data)
        closed.setdefault(key, []).append(tables.bytes_of[reshard.value] * tables.times(reshard.region))
    for (op, scope, source), sizes in closed.items():
        at = f" at {source}" if source else ""
        lines.append(f"{op} in {scope}{at} cannot work on slices of that dim: {sum(sizes):,} bytes gathered for it")
    return lines
