"""Multi-query decoding (Pope et al. 2022): attention to a cache is split over the batch, where heads cannot split the cache."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from partir.errors import NoEffectError, error_text
from partir.sharding.actions import Action, Cut, Prefer, Tile
from partir.sharding.assignment import Assignment
from partir.sharding.indices import ClassId, RowIndex, ValueIndex
from partir.sharding.roles import roles_of
from partir.sharding.structure import Structure

ANYWHERE = "*"
"""The scope of every op."""


@dataclass(frozen=True)
class MultiQuery:
    """Split the batch of key-value caches, and of the attention to them, over `axis`; after `DataParallel` and `Megatron`.

    With few key-value heads Megatron leaves the cache whole on every device of its axis. Here each device keeps the cache of
    its own sequences; projections stay split over heads. So queries go from heads to batch, and what attention gives goes
    back: two all_to_alls per layer and step, each of one position's activations.

    A cache is state that a program without a backward pass updates and that has a batch. Attention is what is computed from
    caches without a parameter; there the batch becomes a class of its own, and is preferred to the heads.

    Source: Pope et al. 2022, "Efficiently scaling transformer inference", section 3.3.
    """

    axis: str

    def actions(self, assignment: Assignment) -> Sequence[Action]:
        assignment.mesh.check(self.axis)
        names = assignment.structure.addresses.names
        caches = assignment.roles.caches
        whole = [(cache, dim) for cache, dim in caches if not assignment.has_axis(cache, self.axis)]
        if not whole:
            raise NoEffectError(
                error_text(
                    f"{self!r} finds no cache to split",
                    why=f'all {len(caches)} caches are split over "{self.axis}" already'
                    if caches
                    else "no state has a batch and is updated in a program without a backward pass",
                    hint="leave it out" if caches else "name the cache and its dim: Tile('cache/...', 0, axis)",
                ),
                [Tile(names[cache], dim, self.axis) for cache, dim in caches],
            )
        cuts = [Cut(names[value], dim) for value, dim in _ends(assignment, whole)]
        apart = assignment.apply(*cuts)
        tiles: list[Action] = []
        seen: set[ClassId] = set()
        misfits: list[str] = []
        for cache, dim in whole:
            class_, shared = apart.class_of(cache, dim), assignment.class_of(cache, dim)
            if class_ is None or shared is None or class_ in seen:
                continue
            seen.add(class_)
            if not assignment.fits(shared, self.axis):
                devices = assignment.mesh.size_of(*assignment.axes_of_class(shared), self.axis)
                misfits.append(f"{names[cache]} ({apart.classes.size[class_]}) on {devices} devices")
                continue
            kept = [axis for axis in assignment.axes_of_class(shared) if not apart.is_claimed(class_, axis)]
            tiles += [Tile(names[cache], dim, axis) for axis in (*kept, self.axis)]
            tiles.append(Prefer(ANYWHERE, names[cache], dim, self.axis))
        if not tiles:
            raise NoEffectError(
                error_text(
                    f"{self!r} finds no batch to split",
                    why=f"the batch of no cache divides: {', '.join(misfits[:4])}",
                    hint="a smaller axis, or a batch that divides",
                )
            )
        return [*cuts, *tiles]


def _ends(assignment: Assignment, caches: Sequence[tuple[ValueIndex, int]]) -> list[tuple[ValueIndex, int]]:
    """(value, dim) of the batch of everything that enters or leaves the attention to these caches."""
    structure = assignment.structure
    tables = structure.tables
    batch = {assignment.class_of(cache, dim) for cache, dim in caches}
    rows, inside = _attention(structure, {cache for cache, _ in caches})
    ends: dict[tuple[ValueIndex, int], None] = {}
    for position in sorted(rows):
        row = tables.rows[position]
        crossing = [view.source for view in row.operands if view is not None and view.source not in inside]
        crossing += [r for r in row.results if any(use >= 0 and use not in rows for use, _ in tables.uses[r])]
        for value in crossing:
            for dim in range(len(tables.shapes[value])):
                if assignment.class_of(value, dim) in batch:
                    ends[value, dim] = None
    return list(ends)


def _attention(structure: Structure, caches: set[ValueIndex]) -> tuple[set[RowIndex], set[ValueIndex]]:
    """The rows that compute from caches without meeting a parameter, and all values they make (with the caches)."""
    tables, of_parameters = structure.tables, roles_of(structure).of_parameters
    rows: set[RowIndex] = set()
    inside = set(caches)
    grown = True
    while grown:  # once more where a loop hands back what is computed further down
        grown = False
        for position, row in tables.each_row():
            sources = {view.source for view in row.operands if view is not None}
            if position in rows or inside.isdisjoint(sources) or row.kind == "predicate":
                continue
            if any(of_parameters[s] for s in sources - inside):
                continue
            rows.add(position)
            inside.update(row.results)
            grown = True
    return rows, inside
