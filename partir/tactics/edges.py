"""Edge parallelism: the edges of a graph network are split, its nodes stay replicated; no names are looked at."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from partir.errors import NoEffectError, error_text
from partir.sharding.actions import Action
from partir.sharding.assignment import Assignment
from partir.sharding.indices import ClassId, RowIndex


@dataclass(frozen=True)
class EdgeParallel:
    """Tile the edges of a graph network over `axis`: each device works on its own edges, nodes stay replicated.

    A step of message passing owes one all_reduce, the sum of what nodes are sent, and one on the way back, the gradient of
    the nodes that were read at the ends of edges; a parameter of an MLP on edges one for its gradient, as with a batch.

    Edges are the dims along which the forward pass both picks rows by index (what an edge reads at its ends) and scatters
    into rows (`segment_sum` and its like). Of a hierarchy (edges that send to nodes, nodes that send to graphs) only the
    lowest level is split.
    """

    axis: str

    def actions(self, assignment: Assignment) -> Sequence[Action]:
        assignment.mesh.check(self.axis)
        found = edge_classes(assignment)
        free = [class_ for class_ in found if not assignment.is_claimed(class_, self.axis)]
        tiles = [assignment.tile(class_, self.axis) for class_ in free if assignment.fits(class_, self.axis)]
        if not tiles:
            why = "no dim is one along which rows are picked by index and scattered into"
            if found:
                why = f"of {len(found)} classes of edges none is free and divides by {assignment.mesh.size_of(self.axis)}"
            sizes, address = assignment.classes.size, assignment.classes.address
            misfits = [f"{address(class_).value} dim {address(class_).dim} ({sizes[class_]})" for class_ in free]
            raise NoEffectError(
                error_text(
                    f"{self!r} finds no edges to split",
                    why=why + (f": {', '.join(misfits)}" if misfits else ""),
                    hint="padding edges to a size that divides, another axis, or Manual with the dim you mean",
                ),
                [assignment.tile(class_, self.axis) for class_ in found],
            )
        return tiles


def edge_classes(assignment: Assignment) -> list[ClassId]:
    """The classes of edges, lowest level of the hierarchy only, in order."""
    roles = assignment.roles
    scattered: set[tuple[ClassId, ClassId]] = set()
    gathered: set[tuple[ClassId, ClassId]] = set()
    for position, row in assignment.structure.tables.each_row():
        if roles.forward[position] and row.op.name == "stablehlo.scatter":
            scattered.update(_pairs(assignment, position, summed=True))
        elif roles.forward[position] and row.op.name == "stablehlo.gather":
            gathered.update(_pairs(assignment, position, summed=False))
    both = {edge for edge, _ in scattered} & {edge for edge, _ in gathered}
    rows = {row for edge, row in scattered | gathered if edge in both}
    return sorted(both - rows - assignment.scanned)


def _pairs(assignment: Assignment, position: RowIndex, *, summed: bool) -> Iterator[tuple[ClassId, ClassId]]:
    """(class of an index's dim, class of the rows it names) of a gather or a scatter; of a scatter the dims that are summed."""
    row, shape = assignment.structure.tables.rows[position], assignment.structure.atoms.shapes[position]
    classes = assignment.classes.of_row(position)
    table, indices = shape.slots[0], shape.slots[len(row.op.results)]
    along = {factor for factors in indices if factors is not None for factor in factors}
    for dim, factors in enumerate(table):
        if not set(row.rule.operands[0][dim]) & row.rule.indexed or not factors:
            continue
        for factor in along:
            if classes[factor] >= 0 and shape.reduction[factor] == summed:
                yield classes[factor], classes[factors[0]]
