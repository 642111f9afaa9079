"""Edge parallelism: the edges of a graph network are split, its nodes stay replicated; no names are looked at."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from partir.errors import NoEffectError, error_text
from partir.sharding.actions import Action, Tile
from partir.sharding.assignment import NEVER, Assignment
from partir.sharding.roles import roles_of
from partir.tactics.megatron import address


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
        free = [class_ for class_ in found if assignment.claims.order[self.axis][class_] == NEVER]
        actions: list[Action] = []
        misfits: list[str] = []
        for class_ in free:
            size = assignment.classes.size[class_]
            value, dim = address(assignment, class_)
            if size % assignment.mesh.size_of(self.axis, *assignment.axes_of_class(class_)):
                misfits.append(f"{value} dim {dim} ({size})")
            else:
                actions.append(Tile(value, dim, self.axis))
        if not actions:
            why = "no dim is one along which rows are picked by index and scattered into"
            if found:
                why = f"of {len(found)} classes of edges none is free and divides by {assignment.mesh.size_of(self.axis)}"
            raise NoEffectError(
                error_text(
                    f"{self!r} finds no edges to split",
                    why=why + (f": {', '.join(misfits)}" if misfits else ""),
                    hint="padding edges to a size that divides, another axis, or Manual with the dim you mean",
                ),
                [Tile(*address(assignment, class_), self.axis) for class_ in found],
            )
        return actions


def edge_classes(assignment: Assignment) -> list[int]:
    """The classes of edges, lowest level of the hierarchy only, in order."""
    roles = roles_of(assignment.structure)
    scattered: set[tuple[int, int]] = set()
    gathered: set[tuple[int, int]] = set()
    for position, row in enumerate(assignment.structure.tables.rows):
        if roles.forward[position] and row.op.name == "stablehlo.scatter":
            scattered.update(_pairs(assignment, position, summed=True))
        elif roles.forward[position] and row.op.name == "stablehlo.gather":
            gathered.update(_pairs(assignment, position, summed=False))
    both = {edge for edge, _ in scattered} & {edge for edge, _ in gathered}
    rows = {row for edge, row in scattered | gathered if edge in both}
    return sorted(both - rows - assignment.scanned)


def _pairs(assignment: Assignment, position: int, *, summed: bool) -> Iterator[tuple[int, int]]:
    """(class of an index's dim, class of the rows it names) of a gather or a scatter; of a scatter the dims that are summed."""
    classes, atoms = assignment.classes, assignment.structure.atoms
    row, shape = assignment.structure.tables.rows[position], atoms.shapes[position]
    first = atoms.factor_start[position] - atoms.atom_count
    table, indices = shape.slots[0], shape.slots[len(row.op.results)]
    along = {p for pieces in indices if pieces is not None for p in pieces}
    for dim, pieces in enumerate(table):
        if not set(row.rule.operands[0][dim]) & row.rule.indexed or not pieces:
            continue
        rows = int(classes.of_factor[first + pieces[0]])
        for piece in along:
            class_ = int(classes.of_factor[first + piece])
            if class_ >= 0 and shape.reduction[piece] == summed:
                yield class_, rows
