"""What a compiler does on the way out of a contraction or reduction: the pointwise ops that alone read its result, and the
reductions of it."""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence

from partir.cost.bf16_operands import Consumers
from partir.dialect.kinds import MATRIX, is_pointwise
from partir.sharding.rule import shape_of
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


def reduced_of(tables: Tables, computed: Collection[int], read: Collection[int]) -> int:
    """The row whose result is reduced while it is made, by a kernel of these rows that reads these values; -1 where none is.

    It reads nothing else; or a contraction of its size, and else what is there before.
    """
    if len(read) == 1:
        return tables.producer[next(iter(read))]
    last = max((tables.producer[value] for value in read), default=-1)
    if last < 0 or tables.rows[last].op.name not in MATRIX:
        return -1
    count = math.prod(shape_of(tables.rows[last].op.results[0].type))
    reductions = [tables.rows[row].op for row in computed if tables.rows[row].op.name in REDUCTIONS]
    return last if all(math.prod(shape_of(op.operands[0].type)) == count for op in reductions) else -1


def _state(tables: Tables, home: Sequence[int], fusible: Sequence[bool]) -> set[int]:
    """Arguments that are state, and what is computed element by element of those alone."""
    found = {a for a, leaf in enumerate(tables.program.signature.arguments) if leaf.role == "state"}
    for position, row in enumerate(tables.rows):
        if fusible[position] and all(view is None or home[view.source] in found for view in row.operands):
            found.update(row.results)
    return found
