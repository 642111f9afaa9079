"""Chooses the anchor of an all-gather: a value it waits for, so that XLA does not merge it with the gather of another phase."""

from __future__ import annotations

import math
from collections.abc import Sequence

from partir.dialect.kinds import is_pointwise
from partir.sharding.tables import Tables


def small_anchor(tables: Tables, gathered: Sequence[int], read: int, position: int) -> int | None:
    """A small value to anchor the gathers of the values `gathered` to, instead of `read`; None if `read` is the better anchor.

    Row `position` reads the gathered values and `read`. A value that passes through a barrier is stored in memory. If `read` is
    computed pointwise from results of an earlier phase (as the gradient of the logits is), it would not be stored otherwise:
    compilers compute it again in each kernel that reads it. A small reduction that `read` is computed from (the sum of a
    softmax) is stored in any case, and costs little as an anchor. It must be computed after the last op of another phase that
    reads `gathered`; before, it would delay nothing.
    """
    row = tables.rows[position]
    phase, count = tables.phase(row), math.prod(tables.shapes[read])
    used = [
        r for value in gathered for r, _ in tables.uses[value] if 0 <= r < position and tables.phase(tables.rows[r]) != phase
    ]  # the earlier rows of other phases that read the gathered values
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
    """The values that a value is computed from by pointwise ops of a region: those that no such op makes, or that come from
    outside the region."""
    found, seen, stack = set[int](), {value}, [value]
    while stack:
        at = stack.pop()
        producer = tables.producer[at]
        row = tables.rows[producer] if producer >= 0 else None
        if row is None or row.region != region or not is_pointwise(row.op):
            found.add(at)
            continue
        sources = {view.source for view in row.operands if view is not None} - seen
        seen |= sources
        stack += sources
    return found
