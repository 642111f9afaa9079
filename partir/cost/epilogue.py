"""What a compiler does on the way out of a contraction or reduction: the pointwise ops that alone read its result."""

from __future__ import annotations

import math
from collections.abc import Sequence

from partir.cost.narrow import MATRIX, Consumers
from partir.dialect.kinds import is_pointwise
from partir.sharding.tables import Tables

REDUCTIONS = frozenset({"stablehlo.reduce", "stablehlo.reduce_window"})


def absorbed(
    tables: Tables, home: Sequence[int], consumers: Consumers, fusible: Sequence[bool], into_matrix: bool
) -> dict[int, int]:
    """By row that is done on the way out, or starts such a chain: the row that follows it there.

    What alone reads a contraction (`into_matrix`) or reduction is followed through pointwise ops of its size. An op that could
    be done by several is done by the last of them. An optimizer's update is not: gradients are summed over devices before.
    """
    rows, sizes = tables.rows, tables.bytes_of
    counts = [math.prod(shape) for shape in tables.shapes]
    state = _state(tables, home, fusible)
    found: dict[int, int] = {}
    taken: dict[int, int] = {}
    for position, row in enumerate(rows):
        heavy = (row.op.name in MATRIX and into_matrix) or row.op.name in REDUCTIONS
        if not heavy or len(row.results) != 1:
            continue
        value, chain = row.results[0], position
        while True:
            readers = {reader for reader, _ in consumers[value]}
            if len(readers) != 1:
                break
            reader = next(iter(readers))
            if reader < 0 or not fusible[reader] or counts[value] != counts[rows[reader].results[0]]:
                break
            if rows[reader].region != row.region or not is_pointwise(rows[reader].op):
                break
            made = rows[reader].results[0]
            if any(
                view is not None and view.source in state and sizes[view.source] >= sizes[made]
                for view in rows[reader].operands
            ):
                break
            if reader in taken:
                del found[taken[reader]]
            taken[reader] = chain
            found[chain] = reader
            value, chain = made, reader
    return found


def _state(tables: Tables, home: Sequence[int], fusible: Sequence[bool]) -> set[int]:
    """Arguments that are state, and what is computed element by element of those alone."""
    found = {a for a, leaf in enumerate(tables.program.signature.arguments) if leaf.role == "state"}
    for position, row in enumerate(tables.rows):
        if fusible[position] and all(view is None or home[view.source] in found for view in row.operands):
            found.update(row.results)
    return found
