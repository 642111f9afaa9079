"""Atoms: the indivisible parts of dims. Split points of reshapes flow through all rules to a fixed point.

A reshape `[768] -> [12, 64]` splits that dim into atoms 12 and 64 everywhere it flows: the projection's weight, its bias,
their gradients and their optimizer state. A merged dim `[B, S] -> [B*S]` keeps atoms B and S.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections import defaultdict, deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import cast

import numpy as np

from partir.sharding.indices import AtomIndex, FactorId, IntArray, LocalFactor, NodeId, RowIndex, ValueIndex
from partir.sharding.rule import Rule
from partir.sharding.tables import Tables

Points = tuple[int, ...]
"""Split points of a dim or factor: the minor products, descending. `(64,)` splits 768 into 12 x 64."""

Join = tuple[ValueIndex, int, int]
"""(value, dim, devices): that dim is to be cut over so many devices. It, and all that is the same index, is not split into
fewer blocks than that; an op that does split it so reads it whole."""


def atom_sizes(size: int, points: Points) -> tuple[int, ...]:
    """The atoms of a dim, major first; () for a dim of one element.

    >>> atom_sizes(768, (64,)), atom_sizes(768, ()), atom_sizes(1, ())
    ((12, 64), (768,), ())
    """
    if size == 1:
        return ()
    edges = (size, *points, 1)
    return tuple(edges[i] // edges[i + 1] for i in range(len(edges) - 1))


def dealt(sizes: Sequence[int], axes: Sequence[str], by_axis: Mapping[str, int]) -> list[tuple[str, ...]] | None:
    """The axes of a dim, major first, dealt to its atoms, major first: an atom is cut to single elements before the next one is
    cut. None where they do not fit so.

    >>> dealt((2, 8), ("a", "b"), {"a": 2, "b": 4}), dealt((2, 8), ("b",), {"b": 4})
    ([('a',), ('b',)], None)
    """
    found: list[tuple[str, ...]] = []
    left = list(axes)
    for size in sizes:
        own: list[str] = []
        while left and size % math.prod(by_axis[axis] for axis in (*own, left[0])) == 0:
            own.append(left.pop(0))
        found.append(tuple(own))
        if left and math.prod(by_axis[axis] for axis in own) != size:
            return None
    return found if all(by_axis[axis] == 1 for axis in left) else None


@dataclass(frozen=True, eq=False)
class OpShape:
    """The sharding rule of one op with its factors split to match the atoms of what it touches; shared by all ops for which
    that comes out the same.

    A matmul of x [16, 8] and w [8, 768], the 768 being 12 heads of 64, has four factors: i, 12, 64 and k.

        sizes       (16, 12, 64, 8)
        reduction   (False, False, False, True)
        slots       x ((0,), (3,))    w ((3,), (1, 2))    result ((0,), (1, 2))
    """

    sizes: tuple[int, ...]
    """[factors] how many blocks each factor has."""
    closed: tuple[bool, ...]
    """[factors] whether it must not be cut."""
    reduction: tuple[bool, ...]
    """[factors] whether the op sums it away."""
    slots: tuple[tuple[tuple[LocalFactor, ...] | None, ...], ...]
    """[operands, then results][dims] the factors of that dim, major first; None where it cannot be cut there."""
    kind: str | None
    """How the pieces of a cut reduction are put together ("add", "max", ...)."""
    operand_count: int


@dataclass(eq=False)
class Atoms:
    """The atoms of every value and the factors of every row, each numbered through the whole program (see `indices`)."""

    sizes_of: list[tuple[tuple[int, ...], ...]]
    """[values][dims] the sizes of the atoms of a dim, major first; () for a dim of one element."""
    start: list[AtomIndex]
    """[values] the first atom of a value."""
    atom_count: int
    shapes: list[OpShape]
    """[rows] the factors of a row."""
    factor_start: list[FactorId]
    """[rows] the first factor of a row, among those of all rows."""
    factor_count: int

    @property
    def node_count(self) -> int:
        """Atoms and factors together."""
        return self.atom_count + self.factor_count

    def factor_id(self, row: RowIndex, local: LocalFactor) -> FactorId:
        """The number of a row's factor among those of all rows."""
        return FactorId(self.factor_start[row] + local)

    def local_factor(self, row: RowIndex, factor: FactorId) -> LocalFactor:
        """The number of a factor among those of its row: the inverse of `factor_id`."""
        return LocalFactor(factor - self.factor_start[row])

    def factors_of(self, row: RowIndex) -> Sequence[FactorId]:
        """The factors of a row, in the order of `OpShape.sizes`."""
        first = self.factor_start[row]
        return cast("Sequence[FactorId]", range(first, first + len(self.shapes[row].sizes)))

    def node_of_factor(self, factor: FactorId) -> NodeId:
        """The node that a factor is; an atom is the node of the same number."""
        return NodeId(self.atom_count + factor)

    @cached_property
    def factor_starts(self) -> IntArray:
        """`factor_start` as an array, for whole columns at once [rows] int64."""
        return np.array(self.factor_start, dtype=np.int64)

    @cached_property
    def shape_ids(self) -> IntArray:
        """Which rows share an `OpShape`: its identity [rows] int64."""
        return np.array([id(shape) for shape in self.shapes], dtype=np.int64)

    @cached_property
    def factor_sizes(self) -> IntArray:
        """The size of every factor [factors] int64."""
        return np.array([size for shape in self.shapes for size in shape.sizes], dtype=np.int64)

    def atoms_of(self, value: ValueIndex, dim: int) -> Sequence[AtomIndex]:
        """The atoms of one dim, major first."""
        per_dim = self.sizes_of[value]
        first = self.start[value] + sum(len(sizes) for sizes in per_dim[:dim])
        return cast("Sequence[AtomIndex]", range(first, first + len(per_dim[dim])))

    def count_of(self, value: ValueIndex) -> int:
        """How many atoms a value has."""
        return sum(len(sizes) for sizes in self.sizes_of[value])

    def place_in_value(self, value: ValueIndex, dim: int, part: int) -> int:
        """The place of part `part` of a dim among all atoms of its value, dims in order.

        A value [16, 768] with 768 as 12 x 64 has three atoms; 64, part 1 of dim 1, is at place 2.
        """
        return sum(len(sizes) for sizes in self.sizes_of[value][:dim]) + part

    def owner_of(self, atom: AtomIndex) -> tuple[ValueIndex, int, int]:
        """(value, dim, part) of an atom: the inverse of `atoms_of`."""
        value = ValueIndex(bisect_right(self.start, atom) - 1)
        rest = atom - self.start[value]
        for dim, sizes in enumerate(self.sizes_of[value]):
            if rest < len(sizes):
                return value, dim, rest
            rest -= len(sizes)
        raise IndexError(atom)


def build(tables: Tables, joins: Iterable[Join] = ()) -> Atoms:
    """Split every dim into its atoms, then every op's rule to match."""
    points = _split(tables, joins)
    value_start, factor_start = _line_starts(tables)
    sizes_of: list[tuple[tuple[int, ...], ...]] = []
    start: list[AtomIndex] = []
    count = 0
    for value, shape in enumerate(tables.shapes):
        first = value_start[value]
        per_dim = tuple(atom_sizes(size, points.get(first + d, ())) for d, size in enumerate(shape))
        sizes_of.append(per_dim)
        start.append(AtomIndex(count))
        count += sum(map(len, per_dim))
    shapes: list[OpShape] = []
    starts: list[FactorId] = []
    factors = 0
    memo: dict[object, OpShape] = {}
    for position, row in enumerate(tables.rows):
        first = factor_start[position]
        own = tuple(points.get(first + f, ()) for f in range(len(row.rule.sizes)))
        slots = [
            tuple(points.get(value_start[view.source] + d, ()) if d >= 0 else None for d in view.dims) if view else None
            for view in row.operands
        ]
        slots += [
            tuple(points.get(value_start[result] + d, ()) for d in range(len(tables.shapes[result]))) for result in row.results
        ]
        key = (id(row.rule), own, tuple(slots))
        shape = memo.get(key)
        if shape is None:
            shape = memo[key] = _refine(row.rule, own, slots, row.slot_shapes)
        shapes.append(shape)
        starts.append(FactorId(factors))
        factors += len(shape.sizes)
    return Atoms(sizes_of=sizes_of, start=start, atom_count=count, shapes=shapes, factor_start=starts, factor_count=factors)


def _line_starts(tables: Tables) -> tuple[list[int], list[int]]:
    """The first line of each value [values] and of each row [rows]: lines number the dims of values, then factors of rules."""
    value_start: list[int] = []
    line = 0
    for shape in tables.shapes:
        value_start.append(line)
        line += len(shape)
    factor_start: list[int] = []
    for row in tables.rows:
        factor_start.append(line)
        line += len(row.rule.sizes)
    return value_start, factor_start


def _split(tables: Tables, joins: Iterable[Join]) -> dict[int, Points]:
    """Split points per line, at the fixed point of all rules. Lines without a split are left out.

    A line is a dim of a value or a factor of a row. Of `y = x @ w`, then y [16, 768] reshaped to z [16, 12, 64]:

        products   y:1 = (factor of 12, factor of 64)     a dim that is made of several factors: a seed, split at 64
        same       y:1 - j of the matmul - w:1            a dim and a factor that are one index: they share split points
        points     {y:1: (64,), j: (64,), w:1: (64,)}

    A split point p of a line of n elements makes n / p blocks; where `joins` cut that line over d devices, d must divide them.
    """
    value_start, factor_start = _line_starts(tables)
    same: dict[int, list[int]] = defaultdict(list)  # by line, those that are the same index
    # By line, each (dim, its factors major first, their sizes) that it is part of, as the dim or as a factor.
    products: dict[int, list[tuple[int, tuple[int, ...], tuple[int, ...]]]] = defaultdict(list)
    seeds: list[int] = []  # dims that are made of several factors
    for position, row in enumerate(tables.rows):
        rule, first = row.rule, factor_start[position]
        slots = [(view.source, view.dims, dims) for view, dims in zip(row.operands, rule.operands, strict=True) if view]
        slots += [(r, range(len(dims)), dims) for r, dims in zip(row.results, rule.results, strict=True)]
        for value, source_dims, dims in slots:
            for source, factors in zip(source_dims, dims, strict=True):
                if source < 0 or not factors:
                    continue
                line = value_start[value] + source
                lines = tuple(first + f for f in factors)
                sizes = tuple(rule.sizes[f] for f in factors)
                if len(factors) == 1:
                    if sizes[0] == tables.shapes[value][source] and sizes[0] > 1:
                        same[line].append(lines[0])
                        same[lines[0]].append(line)
                elif math.prod(sizes) == tables.shapes[value][source] and not rule.closed.issuperset(factors):
                    products[line].append((line, lines, sizes))
                    for factor_line in lines:
                        products[factor_line].append((line, lines, sizes))
                    seeds.append(line)
    points: dict[int, Points] = {}
    queue: deque[int] = deque()  # lines whose split points have changed, and are to be handed on
    whole: dict[int, tuple[int, int]] = {}  # by joined line, its size and the devices that must divide its blocks
    for value, dim, devices in joins:
        size, stack = tables.shapes[value][dim], [value_start[value] + dim]
        while stack:
            line = stack.pop()
            known = whole.get(line, (size, 1))[1]
            if known % devices:
                whole[line] = size, math.lcm(known, devices)
                stack += same[line]

    def add(line: int, new: Sequence[int]) -> None:
        """Split a line at further points, as far as they fit."""
        if line in whole:
            size, devices = whole[line]
            new = [p for p in new if size // p % devices == 0]
        merged = _merge(points.get(line, ()), new)
        if merged != points.get(line, ()):
            points[line] = merged
            queue.append(line)

    for line in seeds:
        for _, _, sizes in products[line]:
            minors = [math.prod(sizes[i:]) for i in range(1, len(sizes))]
            add(line, [m for m in minors if 1 < m < math.prod(sizes)])
    while queue:
        line = queue.popleft()
        own = points[line]
        for other in same.get(line, ()):
            add(other, own)
        for product, lines, sizes in products.get(line, ()):
            for i, factor_line in enumerate(lines):
                minor = math.prod(sizes[i + 1 :])
                inside = [p // minor for p in points.get(product, ()) if p % minor == 0 and 1 < p // minor < sizes[i]]
                add(factor_line, inside)
                add(product, [p * minor for p in points.get(factor_line, ())])
    return points


def _merge(points: Points, new: Sequence[int]) -> Points:
    """Add split points that divide, and are divided by, those already there; a point that does not fit is left out.

    >>> _merge((64,), [128, 48])
    (128, 64)
    """
    merged = list(points)
    for point in new:
        if point not in merged and all(point % p == 0 or p % point == 0 for p in merged):
            merged.append(point)
    return tuple(sorted(merged, reverse=True))


def _refine(
    rule: Rule, own: Sequence[Points], slots: Sequence[tuple[Points | None, ...] | None], shapes: Sequence[tuple[int, ...]]
) -> OpShape:
    """Split a rule's factors at their split points; a dim whose splits differ from its factors' cannot be cut there."""
    parts: list[tuple[LocalFactor, ...]] = []
    sizes: list[int] = []
    closed: list[bool] = []
    reduction: list[bool] = []
    for factor, size in enumerate(rule.sizes):
        pieces = atom_sizes(size, own[factor])
        parts.append(tuple(LocalFactor(len(sizes) + k) for k in range(len(pieces))))
        sizes += pieces
        closed += [factor in rule.closed] * len(pieces)
        reduction += [factor in rule.reduction] * len(pieces)
    refined: list[tuple[tuple[LocalFactor, ...] | None, ...]] = []
    for slot, dims, shape in zip(slots, (*rule.operands, *rule.results), shapes, strict=True):
        row: list[tuple[LocalFactor, ...] | None] = []
        for d, factors in enumerate(dims):
            pieces = tuple(p for f in factors for p in parts[f])
            points = slot[d] if slot is not None else None
            wanted = tuple(sizes[p] for p in pieces)
            fits = math.prod(wanted) == shape[d] if points is None else atom_sizes(shape[d], points) == wanted
            if not fits:
                for piece in pieces:
                    closed[piece] = True
            row.append(pieces if fits else None)
        refined.append(tuple(row))
    return OpShape(
        sizes=tuple(sizes),
        closed=tuple(closed),
        reduction=tuple(reduction),
        slots=tuple(refined),
        kind=rule.kind,
        operand_count=len(rule.operands),
    )
