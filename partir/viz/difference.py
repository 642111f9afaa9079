"""Compares two partitionings of one function: which specs, collectives, bytes and seconds differ."""

from __future__ import annotations

from partir.cost.estimate import Estimate
from partir.errors import ProgramError, error_text
from partir.program import Leaf
from partir.sharding.layout import spec_of, spec_text
from partir.sharding.plan import COLLECTIVES, Plan
from partir.viz.repeats import together
from partir.viz.report import argument_bytes, bytes_text, collectives_by_scope, counts_text, seconds_text
from partir.viz.table import Table


def difference(a: Plan, b: Plan, costs: tuple[Estimate, Estimate] | None) -> Table:
    """A row for each argument and result whose spec differs (one row for repeated layers), for each scope whose collectives
    differ, and for the totals. Raises ProgramError for programs with different arguments.

    `costs` are the estimates of `a` and `b`, if there is a target.
    """
    signatures = [plan.assignment.structure.tables.program.signature for plan in (a, b)]
    if [leaf.name for leaf in signatures[0].arguments] != [leaf.name for leaf in signatures[1].arguments]:
        names = [{leaf.name for leaf in signature.arguments} for signature in signatures]
        only = sorted(names[0] ^ names[1])
        raise ProgramError(
            error_text(
                "these are not partitionings of one function",
                why=f"{len(only)} arguments are in one of them only: {', '.join(only[:3])}",
            )
        )
    rows = [*_specs(a, b)]
    scopes = collectives_by_scope(a), collectives_by_scope(b)
    names = [name for name in dict.fromkeys([*scopes[0], *scopes[1]]) if scopes[0].get(name) != scopes[1].get(name)]
    cells = [tuple(counts_text(own.get(name, {})) for own in scopes) for name in names]
    rows += [(row.name, str(row.cells[0]), str(row.cells[1])) for row in together(names, cells)]
    rows += [
        (kind, str(a.collectives.get(kind, 0)), str(b.collectives.get(kind, 0)))
        for kind in COLLECTIVES
        if a.collectives.get(kind) != b.collectives.get(kind)
    ]
    rows.append(("bytes of arguments per device", bytes_text(argument_bytes(a)), bytes_text(argument_bytes(b))))
    if costs is not None:
        x, y = costs
        rows.append(("peak memory", bytes_text(x.peak_bytes), bytes_text(y.peak_bytes)))
        rows.append(("step time", seconds_text(x.step_seconds), seconds_text(y.step_seconds)))
        rows.append(("communication time", seconds_text(x.communication_seconds), seconds_text(y.communication_seconds)))
    return Table("what differs", ("what", "first", "second"), tuple(rows))


def _specs(a: Plan, b: Plan) -> list[tuple[str, str, str]]:
    """A row for each leaf whose spec differs.

    A result that is the next value of an argument is left out. Other state whose path ends like that of a leaf already listed
    and that changes alike (an optimizer's moments beside their parameters) is only counted.
    """
    signature = a.assignment.structure.tables.program.signature
    changes: list[tuple[Leaf, str, str]] = []
    for leaf, x, y in zip(signature.arguments, a.arguments, b.arguments, strict=True):
        changes.append((leaf, spec_text(spec_of(x)), spec_text(spec_of(y))))
    for number, (leaf, x, y) in enumerate(zip(signature.results, a.outputs, b.outputs, strict=True)):
        if number not in signature.argument_of_result:
            changes.append((leaf, spec_text(spec_of(x)), spec_text(spec_of(y))))
    shown: list[tuple[Leaf, str, str]] = []
    seen: set[tuple[object, ...]] = set()
    moments = 0
    for leaf, before, after in changes:
        if before == after:
            continue
        ends = [(leaf.path[k:], leaf.shape, before, after) for k in range(1, len(leaf.path))]
        if any(end in seen for end in ends):
            moments += 1
            continue
        seen.add((leaf.path[1:], leaf.shape, before, after))
        shown.append((leaf, before, after))
    found = together([leaf.name for leaf, _, _ in shown], [(before, after) for _, before, after in shown])
    rows = [(row.name, str(row.cells[0]), str(row.cells[1])) for row in found]
    return [*rows, (f"and {moments} more state", "as above", "as above")] if moments else rows
