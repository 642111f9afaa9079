"""Embedding parallelism: tables split by rows, each device looks up its own and the sum puts them together."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from partir.errors import NoEffectError, error_text
from partir.sharding.actions import Action, Tile
from partir.sharding.assignment import Assignment
from partir.sharding.classes import NamedDim, one_of_each
from partir.sharding.scopes import in_scope


@dataclass(frozen=True)
class EmbeddingParallel:
    """Tile the vocabulary (the looked-up dim) of embedding tables over `axis`.

    A look-up is then a masked partial sum, reduced by one all_reduce of the activations; its gradient touches only the rows a
    device has. With tied embeddings the logits, too, are split by vocabulary, and the softmax over them costs two small
    all_reduces. `scope` limits it to look-ups inside scopes of that name or glob.
    """

    axis: str
    scope: str | None = None

    def actions(self, assignment: Assignment) -> Sequence[Action]:
        assignment.mesh.check(self.axis)
        found = one_of_each(self._vocabularies(assignment))
        free = [dim for dim in found if not assignment.is_claimed(dim.class_, self.axis)]
        if not free:
            raise NoEffectError(
                error_text(
                    f"{self!r} finds no embedding table",
                    why="no parameter is looked up by index" + (f' in scope "{self.scope}"' if self.scope else ""),
                    hint="Manual with the table and dim you mean",
                ),
                [Tile(dim.name, dim.dim, self.axis) for dim in found],
            )
        return [Tile(dim.name, dim.dim, self.axis) for dim in free]

    def _vocabularies(self, assignment: Assignment) -> Iterator[NamedDim]:
        """The dims of parameters along which the forward pass looks up rows, look-up by look-up."""
        tables, roles = assignment.structure.tables, assignment.roles
        for position, row in tables.each_row():
            view = row.operands[0] if row.op.name == "stablehlo.gather" and roles.forward[position] else None
            if view is None or view.source not in roles.parameters:
                continue
            if self.scope is not None and not in_scope(self.scope, tables.scope(row)):
                continue
            picked = row.rule.indexed & row.rule.reduction
            looked_up = {view.dims[d] for d, factors in enumerate(row.rule.operands[0]) if not picked.isdisjoint(factors)}
            yield from (dim for dim in assignment.dims_of([view.source]) if dim.dim in looked_up)
