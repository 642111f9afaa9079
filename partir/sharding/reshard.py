"""The shortest sequence of collectives from one layout to another.

Slices cost nothing and come first; an axis that moves from one dim to another is one all_to_all, or two where other axes cut
the first dim within it: they move, too, and back. What remains is gathered, with one all_gather for all axes of one dim; last
come the slices that had to wait for their axis to be free.

    before   [8/a, 8/b, 8]      after   [8, 8/b, 8/a]         one all_to_all over a, from dim 0 to dim 2
    before   [8/a.b, 8]         after   [8/b, 8/a]            two: a and b to dim 1 as a.b there, then b back
    before   [8/a, 8]           after   [8/b, 8]              gather a, then slice b (a slice of b first would cut within a)
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from typing import Literal

from partir.sharding.layout import Axes, DimLayout, Layout, Segment

StepKind = Literal["all_gather", "all_slice", "all_to_all", "all_reduce", "reduce_scatter"]


@dataclass(frozen=True)
class Place:
    """A part of a dim in the tensor at hand: dim `dim` viewed as [outer, part, inner]."""

    dim: int
    outer: int = 1


@dataclass(frozen=True)
class Step:
    """One collective over `axes` (major first). `place` is what grows or shrinks; an all_to_all cuts `target` instead. A sum is
    made in `dtype` (None: that of the value), to which the value is converted before it, and back after it."""

    kind: StepKind
    axes: Axes
    place: Place | None = None
    target: Place | None = None
    reduction: str | None = None
    dtype: str | None = None


@cache
def steps(before: Layout, after: Layout, sizes: tuple[tuple[str, int], ...]) -> tuple[Step, ...]:
    """The collectives that turn a tensor laid as `before` into one laid as `after`, on axes of these sizes.

    >>> (step,) = steps((((8, ("d",)),), ((8, ()),)), (((8, ()),), ((8, ("d",)),)), (("d", 4),))
    >>> step.kind, step.axes, step.place, step.target
    ('all_to_all', ('d',), Place(dim=0, outer=1), Place(dim=1, outer=1))
    """
    by_axis = dict(sizes)
    grid = [_common(a, b, by_axis) for a, b in zip(before, after, strict=True)]
    parts: list[tuple[int, int]] = []
    now: list[Axes] = []
    goal: list[Axes] = []
    extents: list[int] = []
    for dim, (cut_before, cut_after) in enumerate(grid):
        for (size, axes), (_, wanted) in zip(cut_before, cut_after, strict=True):
            parts.append((dim, len([p for p in parts if p[0] == dim])))
            now.append(axes)
            goal.append(wanted)
            extents.append(size)
    found: list[Step] = []

    def place(k: int) -> Place:
        dim = parts[k][0]
        outer = 1
        for i in range(len(parts)):
            if parts[i][0] == dim and i < k:
                outer *= extents[i] // math.prod(by_axis[a] for a in now[i])
        return Place(dim, outer)

    def slices() -> None:
        for k in range(len(parts)):
            missing = goal[k][len(now[k]) :]
            used = {axis for axes in now for axis in axes}
            if goal[k][: len(now[k])] == now[k] and missing and not used.intersection(missing):
                found.append(Step("all_slice", missing, place(k)))
                now[k] = goal[k]

    slices()
    for i in range(len(parts)):
        kept = _prefix(now[i], goal[i])
        moved = now[i][len(kept) :]
        for j in range(len(parts)):
            apart = parts[i][0] != parts[j][0] or (i < j and place(i) != place(j))  # else one would change the other's place
            if i != j and apart and moved and goal[i] == kept and goal[j] == now[j] + moved:
                found.append(Step("all_to_all", moved, place(i), place(j)))
                now[i], now[j] = goal[i], goal[j]
                break
    for i, j in itertools.permutations(range(len(parts)), 2):
        # before  i (a, b), j ()     after  i (b), j (a)     by way of  j (a, b); and the same backwards
        leaves, comes = _outer(now[i], goal[i], now[j], goal[j]), _outer(goal[i], now[i], goal[j], now[j])
        moved, inner = leaves or comes or ((), ())
        between = (now[j] if leaves else goal[j]) + moved + inner
        if parts[i][0] == parts[j][0] or not moved or extents[j] % math.prod(by_axis[a] for a in between):
            continue
        first, second = (moved + inner, inner) if leaves else (inner, moved + inner)
        found.append(Step("all_to_all", first, place(i), place(j)))
        now[i], now[j] = now[i][: -len(first)], between
        found.append(Step("all_to_all", second, place(j), place(i)))
        now[i], now[j] = goal[i], goal[j]
    slices()
    for k in range(len(parts)):
        kept = _prefix(now[k], goal[k])
        if now[k] != kept:
            found.append(Step("all_gather", now[k][len(kept) :], place(k)))
            now[k] = kept
    slices()
    assert now == goal, (before, after, now, goal)
    return tuple(found)


def _outer(before: Axes, after: Axes, other_before: Axes, other_after: Axes) -> tuple[Axes, Axes] | None:
    """The axes that leave one part for another, and those within them that stay; None if it is anything else that happens.

    >>> _outer(("a", "b"), ("b",), (), ("a",))
    (('a',), ('b',))
    """
    start = len(_prefix(before, after))
    moved = other_after[len(other_before) :]
    inner = before[start + len(moved) :]
    kept = before[:start]
    if moved and inner and (before, after, other_after) == (kept + moved + inner, kept + inner, other_before + moved):
        return moved, inner
    return None


def _prefix(a: Axes, b: Axes) -> Axes:
    count = 0
    while count < min(len(a), len(b)) and a[count] == b[count]:
        count += 1
    return a[:count]


def _common(before: DimLayout, after: DimLayout, by_axis: Mapping[str, int]) -> tuple[DimLayout, DimLayout]:
    """Cut two layouts of one dim at the same places."""
    edges = sorted(_edges(before) | _edges(after), reverse=True)
    cut_before, cut_after = _cut(before, edges, by_axis), _cut(after, edges, by_axis)
    if cut_before is not None and cut_after is not None:
        return cut_before, cut_after
    raise AssertionError(f"layouts {before} and {after} have no common cut")


def _edges(dim: DimLayout) -> set[int]:
    edges: set[int] = set()
    minor = 1
    for size, _ in reversed(dim):
        edges.add(minor)
        minor *= size
    return edges


def _cut(dim: DimLayout, edges: list[int], by_axis: Mapping[str, int]) -> DimLayout | None:
    """Cut segments further, at the given minor products; the axes of a segment go to its major parts. None if they cannot."""
    result: list[Segment] = []
    minor = math.prod(size for size, _ in dim)
    if not minor:
        return dim
    for size, axes in dim:
        inner = minor // size
        marks = [minor, *(e for e in edges if inner < e < minor), inner]
        left = list(axes)
        for k in range(len(marks) - 1):
            if marks[k] % marks[k + 1]:
                return None
            part = marks[k] // marks[k + 1]
            taken: list[str] = []
            while left and part % math.prod([by_axis[a] for a in (*taken, left[0])]) == 0:
                taken.append(left.pop(0))
            if left and math.prod(by_axis[a] for a in taken) != part:
                return None
            result.append((part, tuple(taken)))
        if left:
            return None
        minor = inner
    return tuple(result)


@cache
def between(before: Layout, after: Layout, sizes: tuple[tuple[str, int], ...]) -> tuple[Step, ...]:
    """`steps`, by way of the whole tensor in the dims whose two layouts cannot be cut at the same places."""
    by_axis = dict(sizes)
    middle: list[DimLayout] = []
    for a, b in zip(before, after, strict=True):
        edges = sorted(_edges(a) | _edges(b), reverse=True)
        fits = _cut(a, edges, by_axis) is not None and _cut(b, edges, by_axis) is not None
        middle.append(b if fits else ((math.prod(size for size, _ in a), ()),))
    through = tuple(middle)
    if through == after:
        return steps(before, after, sizes)
    return steps(before, through, sizes) + steps(through, after, sizes)
