"""What a TPU keeps as bf16: f32 values that only contractions read at default precision, and copies of what loops read so.

XLA narrows the operands of such contractions; where the narrowing is all that reads a value, the value itself is stored narrow,
a stack that a loop writes and another reads included. A parameter that a loop reads so is narrowed once, before the loop.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
from xdsl.dialects.builtin import Float32Type, TensorType

from partir.cost.flops import passes_of
from partir.dialect.kinds import MATRIX
from partir.sharding.tables import Tables

NARROW = 0.5
"""What a bf16 copy takes of an f32 value."""

Consumers = Sequence[Sequence[tuple[int, int]]]


def narrow_values(
    tables: Tables, home: Sequence[int], consumers: Consumers, makers: Sequence[tuple[Sequence[int], set[int]]]
) -> npt.NDArray[np.bool_]:
    """Whether each value is stored as bf16. `makers` are kernels: (rows that store results, rows computed there); what a kernel
    reads of its own results it reads before they are stored."""
    flags = np.zeros(len(tables.values), dtype=np.bool_)
    for own, computed in makers:
        for value in (result for position in own for result in tables.rows[position].results):
            flags[value] = _is_f32(tables, value) and _for_contractions(tables, home, consumers, value, computed)
    for row in tables.rows:
        if row.kind == "carry" and not row.is_invariant and len(row.results) == 3:
            stack = home[row.results[2]]
            flags[stack] = _is_f32(tables, stack) and _for_contractions(tables, home, consumers, stack, set())
    return flags


def narrowed_in_loops(
    tables: Tables, home: Sequence[int], consumers: Consumers, narrow: npt.NDArray[np.bool_]
) -> list[tuple[int, list[int]]]:
    """Values of which a bf16 copy is made before a loop: (value, the outermost regions inside which contractions read it)."""
    found: list[tuple[int, list[int]]] = []
    for value, readers in enumerate(consumers):
        if home[value] != value or narrow[value] or not _is_f32(tables, value) or tables.region_of[value]:
            continue
        inside = [(r, slot) for r, slot in readers if r >= 0 and tables.rows[r].region and tables.rows[r].kind != "carry"]
        if inside and all(_narrows(tables, consumers, r) for r, _ in inside):
            found.append((value, sorted({_outermost(tables, tables.rows[r].region) for r, _ in inside})))
    return found


def _for_contractions(tables: Tables, home: Sequence[int], consumers: Consumers, value: int, skip: set[int]) -> bool:
    """Whether contractions read a value and, but for loops that hand it on and updates of it in place, nothing else does."""
    contracted = False
    for reader, slot in consumers[value]:
        if reader in skip:
            continue
        if reader < 0:
            return False
        row = tables.rows[reader]
        if row.op.name == "stablehlo.dynamic_update_slice" and slot == 0:
            continue
        if row.kind == "carry" and any(home[result] == value for result in row.results):
            continue
        if not _narrows(tables, consumers, reader):
            return False
        contracted = True
    return contracted


def _narrows(tables: Tables, consumers: Consumers, reader: int) -> bool:
    """Whether a row is a contraction, or slices what contractions alone read."""
    row = tables.rows[reader]
    if row.op.name == "stablehlo.dynamic_slice":
        return bool(consumers[row.results[0]]) and all(r >= 0 and takes_narrow(tables, r) for r, _ in consumers[row.results[0]])
    return takes_narrow(tables, reader)


def takes_narrow(tables: Tables, reader: int) -> bool:
    """Whether a row is a contraction at default precision."""
    op = tables.rows[reader].op
    return op.name in MATRIX and passes_of(op) == 1


def is_sent_narrow(tables: Tables, value: int, uses: Sequence[tuple[int, int]]) -> bool:
    """Whether a value that is gathered for some uses is narrowed before: contractions alone read it."""
    return bool(uses) and _is_f32(tables, value) and all(row >= 0 and takes_narrow(tables, row) for row, _ in uses)


def _outermost(tables: Tables, region: int) -> int:
    while tables.parent[region]:
        region = tables.parent[region]
    return region


def _is_f32(tables: Tables, value: int) -> bool:
    type_ = tables.values[value].type
    return isinstance(type_, TensorType) and isinstance(type_.element_type, Float32Type) and bool(tables.shapes[value])
