"""What a gather of a later phase waits for, so that a compiler neither merges it with an earlier one nor makes it too soon."""

from __future__ import annotations

import math
from collections.abc import Sequence

from partir.dialect.kinds import is_pointwise
from partir.sharding.tables import Tables


def small_anchor(tables: Tables, gathered: Sequence[int], read: int, position: int) -> int | None:
    """A small value that `read`, an operand of row `position`, is computed from, to tie gathers of `gathered` to; None where
    `read` itself is what to tie them to.

    A value that a barrier passes on is stored. What is computed pointwise of the results of an earlier phase (the gradient of a
    loss, of the logits) would not be: compilers make it again in each kernel that reads it. A small reduction on the way to it
    (the sum of a softmax) is stored in any case. It has to come after the earlier phases have read `gathered`.
    """
    row = tables.rows[position]
    phase, count = tables.phase(row), math.prod(tables.shapes[read])
    used = [
        r for value in gathered for r, _ in tables.uses[value] if 0 <= r < position and tables.phase(tables.rows[r]) != phase
    ]
    small: list[int] = []
    for root in _roots(tables, read, row.region):
        producer = tables.producer[root]
        if root == read or producer < 0 or tables.rows[producer].region != row.region:
            continue
        if math.prod(tables.shapes[root]) >= count:
            if tables.phase(tables.rows[producer]) == phase:
                return None
        elif producer > max(used, default=producer):
            small.append(root)
    return min(small, key=lambda root: math.prod(tables.shapes[root]), default=None)


def _roots(tables: Tables, value: int, region: int) -> set[int]:
    """The values of a region (or around it) that a value is computed from pointwise, none of them pointwise itself."""
    found, seen, ahead = set[int](), {value}, [value]
    while ahead:
        at = ahead.pop()
        producer = tables.producer[at]
        row = tables.rows[producer] if producer >= 0 else None
        if row is None or row.region != region or not is_pointwise(row.op):
            found.add(at)
            continue
        sources = {view.source for view in row.operands if view is not None} - seen
        seen |= sources
        ahead += sources
    return found
