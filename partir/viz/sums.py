"""Reports in which dtype sums over devices are computed, if that is narrower than float32 or was requested."""

from __future__ import annotations

from collections import Counter

from partir.cost.target import Target
from partir.sharding.plan import Plan
from partir.sharding.reshard import Step
from partir.sharding.sums import ROUNDED, float_name, item_bytes

ENOUGH = "float32"
"""Sums in this dtype or a wider one are not reported, unless the dtype was requested."""

Sum = tuple[str, str, bool]
"""The dtype of the values, the dtype that they are summed in, and whether that was requested."""


def sums_lines(plan: Plan, target: Target | None) -> list[str]:
    """One line on all sums that are narrower than float32 or whose dtype was requested; [] if there are none."""
    found = _sums(plan, target)
    if not found:
        return []
    parts: list[str] = []
    for (own, made, asked), axes in sorted(found.items()):
        count = sum(axes.values())
        over = " and ".join(f'"{axis}"' for axis in plan.assignment.mesh.names if any(axis in key for key in axes))
        how = "as was asked" if asked else "as the program says" if made == own else "by its compiler"
        parts.append(f"{count} sum{'s' if count > 1 else ''} of {own} over {over} in {made}, {how}")
    on = f" on {target.name}" if target is not None else ""
    hint = ""
    if any(made == own and item_bytes(made) < item_bytes(ENOUGH) for own, made, _ in found):
        hint = "; reduce_dtype='float32' of DataParallel, ZeRO or partir.jit makes them in float32, for more bytes"
    return [f"sums over devices{on}: {'; '.join(parts)}{hint}"]


def _sums(plan: Plan, target: Target | None) -> dict[Sum, Counter[tuple[str, ...]]]:
    """The number of sums of each kind in one step, by the axes that they are over.

    A compiler may sum in another dtype than the program says: `target.sums_as` has those that it always replaces.
    """
    tables, always = plan.assignment.structure.tables, {} if target is None else target.sums_as
    found: dict[Sum, Counter[tuple[str, ...]]] = {}

    def add(value: int, steps: tuple[Step, ...], times: int) -> None:
        for step in steps:
            own = float_name(tables.values[value].type) if step.reduction in ROUNDED else None
            if own is not None and (step.dtype is not None or item_bytes(own) < item_bytes(ENOUGH)):
                made = step.dtype or own
                key = own, always.get(made, made), step.dtype is not None
                found.setdefault(key, Counter())[step.axes] += times

    for reduction in plan.reductions.values():
        add(reduction.value, reduction.steps, tables.times(tables.region_of[reduction.value]))
    for reshard in plan.reshards.values():
        add(reshard.value, reshard.steps, tables.times(reshard.region))
    return found
