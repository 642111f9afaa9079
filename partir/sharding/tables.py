"""A program as flat tables: which values and dims each op touches, with views looked through and constants set apart.

Three kinds of value get special care:

- *constant-like*: constants, iota, masks and whatever is computed from them alone. They are made again at each use, in the
  layout that the use wants; they never connect one layer to another and are never resharded.
- *views*: transposes, broadcasts and reshapes that only add or drop dims of size 1. A use of a view is a use of its
  source: whatever the use wants is asked of the source, where a reshard is smallest.
- *pass-through* ops: converts, reshapes that split or merge dims, slices, reverses, tags. Their
  layout is that of their operand.

Control flow is part of the same list of rows: each value a `while` carries, each result of a `case`, each value that passes an
optimization barrier is one *carry* row that ties its ends together; the ops inside follow as rows of their own, and a `Control`
says what belongs to which region.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Literal, cast

from xdsl.ir import Operation, SSAValue

from partir.dialect.kinds import happens_once
from partir.dialect.sdy import ManualComputationOp
from partir.program import Program, item_bytes, origin_of, type_bytes
from partir.sharding.indices import ROOT, Reader, RegionId, RowIndex, ValueIndex
from partir.sharding.rule import Rule, shape_of

Kind = Literal["constant_like", "view", "pass_through", "claim", "carry", "predicate"]


@dataclass(frozen=True)
class View:
    """A value seen through views: `dims[d]` is the dim of `source` that became dim d, or -1 for none.

    x [8, 16] transposed and given a dim of size 1 in front is `View(x, (-1, 1, 0))`, of shape [1, 16, 8].
    """

    source: ValueIndex
    dims: tuple[int, ...]


@dataclass(eq=False)
class OpRow:
    """One op that is partitioned, or one value that control flow carries."""

    index: int
    """Its place in its block; for a carry row, which of the carried values it is."""
    op: Operation
    kind: Kind
    """Whether it claims axes for itself, passes its operand's layout through, carries a value, or reads a predicate."""
    rule: Rule
    operands: tuple[View | None, ...]
    """What each operand reads, seen through views; None where that is constant-like."""
    results: tuple[ValueIndex, ...]
    captured: tuple[ValueIndex, ...] = ()
    """The values that its regions read from outside: they are wanted replicated."""
    region: RegionId = ROOT

    @property
    def slot_shapes(self) -> list[tuple[int, ...]]:
        """The shape of every operand as the row reads it, then of every result."""
        if self.kind == "carry":
            return [self.rule.sizes] * (len(self.operands) + len(self.results))
        if self.kind == "predicate":
            return [()]
        return [shape_of(v.type) for v in (*self.op.operands, *self.op.results)]

    @property
    def passed_through(self) -> View | None:
        """The operand whose layout this row takes over, as it claims nothing itself: that of a pass-through op, the value that
        a loop carries without changing it, the value that passes a barrier. None for all other rows."""
        if (
            self.kind == "pass_through"
            or self.is_invariant
            or (self.kind == "carry" and len(self.results) == len(self.operands) == 1)
        ):
            return self.operands[0]
        return None

    @property
    def is_invariant(self) -> bool:
        """Whether this is a value that a loop carries without changing it."""
        if self.kind != "carry" or len(self.results) != 3:
            return False
        view = self.operands[1]
        return view is not None and view.source == self.results[1] and view.dims == tuple(range(len(view.dims)))


@dataclass(eq=False)
class RegionItems:
    """What runs in one region, in order: rows, and inner controls."""

    number: RegionId
    items: list[RowIndex | Control] = field(default_factory=list["RowIndex | Control"])
    arguments: tuple[ValueIndex, ...] = ()
    returns: tuple[SSAValue, ...] = ()


@dataclass(eq=False)
class Control:
    """A `while`, `case` or optimization barrier: `carries` are its carry rows, `predicate` the row that reads what decides.

    A carry row of a `while` has operands (initial value, what the body hands back) and results (argument of the condition,
    argument of the body, result); of a `case`, an operand per branch and the result; of a barrier, operand and result.
    """

    op: Operation
    carries: tuple[RowIndex, ...]
    regions: tuple[RegionItems, ...]
    predicate: RowIndex | None = None
    trips: int | None = None


@dataclass(frozen=True)
class Accumulator:
    """A sum that a loop carries: the body only adds to it, and nothing else reads it there.

    while (%sum = 0, ...) do { return add %sum, %addend }
    """

    carry: RowIndex
    """The carry row of the sum."""
    add: RowIndex
    """The row of the addition."""
    addend: ValueIndex
    argument: ValueIndex
    """The body's argument, `%sum`."""
    result: ValueIndex
    """What the loop returns."""
    trips: int


@dataclass(eq=False)
class Tables:
    """Values are numbered arguments first, then results in program order; rows are numbered in program order.

    `sin(x.T) + 1`, with x [4, 8]: values 0 (x), 1 (the constant), 2 (x.T), 3 (the sine), 4 (1, broadcast) and 5 (the sum).
    Value 2 is in `views`; 1 and 4 are constant-like; row 0 is the sine, of `View(0, (1, 0))`, row 1 the addition.
    """

    program: Program
    values: list[SSAValue]
    """[values]"""
    shapes: list[tuple[int, ...]]
    """[values] global shapes."""
    rows: list[OpRow]
    """[rows]"""
    outputs: list[View | None]
    """[results] what each result of the program is a view of; None where it is constant-like."""
    kinds: dict[Operation, Kind]
    views: dict[ValueIndex, View]
    """The values that are views, each of what: never of another view."""
    index_of: dict[SSAValue, ValueIndex]
    argument_count: int
    producer: list[RowIndex]
    """[values] the row that makes each; -1 for arguments, views and what is constant-like."""
    root: RegionItems
    """What the function runs."""
    region_of: list[RegionId]
    """[values] the region each is made in."""
    parent: list[RegionId]
    """[regions] the region around each; 0 around the function itself."""
    trips: list[int]
    """[regions] how often each runs in one run of the region around it."""

    @property
    def arguments(self) -> Sequence[ValueIndex]:
        """The values that are arguments."""
        return cast("Sequence[ValueIndex]", range(self.argument_count))

    def each_value(self) -> Sequence[ValueIndex]:
        """All values, by number."""
        return cast("Sequence[ValueIndex]", range(len(self.values)))

    def each_row(self) -> Iterator[tuple[RowIndex, OpRow]]:
        """All rows, with their numbers."""
        return cast("Iterator[tuple[RowIndex, OpRow]]", enumerate(self.rows))

    @property
    def regions(self) -> Sequence[RegionId]:
        """All regions of control flow, by number."""
        return cast("Sequence[RegionId]", range(len(self.parent)))

    @property
    def state(self) -> Sequence[tuple[ValueIndex, int]]:
        """(argument, result) of state that the program updates: what one step returns is what the next one is given."""
        return cast("Sequence[tuple[ValueIndex, int]]", self.program.signature.state)

    def times(self, region: RegionId) -> int:
        """How often a region runs in one step: the product of the trip counts around it (an unknown one counts as 1)."""
        times = 1
        while region:
            times *= self.trips[region]
            region = self.parent[region]
        return times

    def is_inside(self, region: RegionId, outer: RegionId) -> bool:
        """Whether a region lies in another, or is it."""
        while region != outer:
            if not region:
                return False
            region = self.parent[region]
        return True

    @cached_property
    def controls(self) -> list[Control]:
        """Every control, outer ones first."""
        found: list[Control] = []
        stack = [self.root]
        while stack:
            for item in stack.pop().items:
                if isinstance(item, Control):
                    found.append(item)
                    stack.extend(item.regions)
        return found

    @cached_property
    def accumulators(self) -> dict[RowIndex, Accumulator]:
        """The sums that loops carry, by the row of their addition. Nothing else reads what is carried."""
        found: dict[RowIndex, Accumulator] = {}
        for control in self.controls:
            for position in control.carries if len(control.regions) == 2 and control.op.name == "stablehlo.while" else ():
                row = self.rows[position]
                ignored, argument, result = row.results
                back = row.operands[1]
                reads = self.uses[argument]
                if back is None or self.uses[ignored] or len(reads) != 1 or reads[0][0] < 0:
                    continue
                add, slot = RowIndex(reads[0][0]), reads[0][1]
                adding = self.rows[add]
                other = adding.operands[1 - slot] if adding.op.name == "stablehlo.add" and slot in (0, 1) else None
                if other is None or adding.results != (back.source,) or self.uses[back.source] != [(position, 1)]:
                    continue
                found[add] = Accumulator(
                    carry=position,
                    add=add,
                    addend=other.source,
                    argument=argument,
                    result=result,
                    trips=control.trips or 8,
                )
        return found

    @cached_property
    def scanned(self) -> frozenset[tuple[ValueIndex, int]]:
        """(value, dim) pairs that the program walks along, one slice at a time: no tactic cuts those."""
        found: set[tuple[ValueIndex, int]] = set()
        for row in self.rows:
            if row.op.name not in ("stablehlo.dynamic_slice", "stablehlo.dynamic_update_slice") or row.operands[0] is None:
                continue
            part = row.op.results[0] if row.op.name == "stablehlo.dynamic_slice" else row.op.operands[1]
            sizes = zip(row.operands[0].dims, shape_of(part.type), shape_of(row.op.operands[0].type), strict=True)
            found |= {(row.operands[0].source, dim) for dim, window, whole in sizes if dim >= 0 and window < whole}
        return frozenset(found)

    @cached_property
    def uses(self) -> list[list[tuple[Reader, int]]]:
        """By value, the (reader, operand) pairs that read it; the operand is -1 for a row whose regions capture it."""
        uses: list[list[tuple[Reader, int]]] = [[] for _ in self.values]
        for position, row in enumerate(self.rows):
            reader = Reader(position)
            for slot, view in enumerate(row.operands):
                if view is not None:
                    uses[view.source].append((reader, slot))
            for value in row.captured:
                uses[value].append((reader, -1))
        for result, view in enumerate(self.outputs):
            if view is not None:
                uses[view.source].append((Reader(-1 - result), 0))
        return uses

    @cached_property
    def passed_through(self) -> list[View | None]:
        """By row, what it lies as where it claims nothing (see `OpRow.passed_through`)."""
        return [row.passed_through for row in self.rows]

    @cached_property
    def reads(self) -> list[tuple[tuple[int, View, ValueIndex, bool], ...]]:
        """By row, the operands that are not constant-like: (slot, view, its source, whether the view is the identity)."""
        ranges = [tuple(range(rank)) for rank in range(1 + max(map(len, self.shapes), default=0))]
        return [
            tuple(
                (slot, view, view.source, view.dims == ranges[len(self.shapes[view.source])])
                for slot, view in enumerate(row.operands)
                if view is not None
            )
            for row in self.rows
        ]

    @cached_property
    def readers(self) -> list[tuple[Reader, ...]]:
        """By value, what reads it, each once, ascending: results of the program first."""
        return [tuple(sorted({position for position, _ in uses})) for uses in self.uses]

    @cached_property
    def once(self) -> frozenset[RowIndex]:
        """The rows that must happen once, on one device."""
        return frozenset(position for position, row in self.each_row() if happens_once(row.op))

    @cached_property
    def manual(self) -> frozenset[RowIndex]:
        """The rows that are a user's `shard_map`."""
        return frozenset(position for position, row in self.each_row() if isinstance(row.op, ManualComputationOp))

    @cached_property
    def of_state_alone(self) -> list[bool]:
        """[values] whether each is a parameter, perhaps converted or reshaped: gathered anew in each phase that reads it."""
        leaves = self.program.signature.arguments
        return self.made_of({i for i in self.arguments if leaves[i].role == "state"})

    def made_of(self, arguments: Collection[ValueIndex]) -> list[bool]:
        """[values] whether each is one of these arguments, or one only converted, reshaped or sliced."""
        flags = [value in arguments for value in range(len(self.values))]
        for row in self.rows:
            view = row.operands[0] if row.operands else None
            if view is None or not flags[view.source]:
                continue
            if row.kind == "pass_through" or row.op.name in ("stablehlo.dynamic_slice", "stablehlo.optimization_barrier"):
                flags[row.results[0]] = True
            elif row.is_invariant:
                for result in row.results:
                    flags[result] = True
        return flags

    @cached_property
    def read_in_phases(self) -> frozenset[ValueIndex]:
        """The parameters that more than one phase reads outside loops, themselves or only converted or reshaped."""
        root = list(self.each_value())
        found: set[ValueIndex] = set()
        for value in self.each_value():
            if not self.of_state_alone[value] or self.region_of[value]:
                continue
            if value >= self.argument_count:
                view = self.rows[self.producer[value]].operands[0]
                assert view is not None
                root[value] = root[view.source]
            rows = [self.rows[row] for row, _ in self.uses[value] if row >= 0]
            if len({self.phase(row) for row in rows if not row.region and row.kind != "carry"}) > 1:
                found.add(root[value])
        return frozenset(found)

    @cached_property
    def of_one_round(self) -> list[bool]:
        """[values] whether each is a slice that one round of a loop takes of a parameter, perhaps converted or reshaped."""
        flags = [False] * len(self.values)
        for row in self.rows:
            view = row.operands[0] if row.region and row.operands and row.results else None
            if view is not None and self.of_state_alone[row.results[0]]:
                flags[row.results[0]] = row.op.name == "stablehlo.dynamic_slice" or flags[view.source]
        return flags

    @cached_property
    def bytes_of(self) -> list[int]:
        """[values] global bytes."""
        by_type: dict[int, int] = {}
        found: list[int] = []
        for value in self.values:
            size = by_type.get(id(value.type))
            if size is None:
                size = by_type[id(value.type)] = type_bytes(value.type)
            found.append(size)
        return found

    @cached_property
    def item_bytes(self) -> list[int]:
        """[values] the bytes of one element; 0 for tokens."""
        return [item_bytes(value.type) for value in self.values]

    def itself(self, value: ValueIndex) -> View:
        """A value as the view of itself."""
        return View(value, tuple(range(len(self.shapes[value]))))

    def view_of(self, value: SSAValue) -> View | None:
        """What a value is a view of (itself, if of nothing else); None when it is constant-like."""
        owner = value.owner
        if isinstance(owner, Operation) and self.kinds.get(owner) == "constant_like":
            return None
        index = self.index_of[value]
        return self.views.get(index) or self.itself(index)

    def phase(self, row: OpRow) -> str:
        """The phase of a row: "forward", "backward" or "recomputed"."""
        return origin_of(row.op).phase.data

    def scope(self, row: OpRow) -> str:
        """The named scope of a row: "layer_0/mlp-block/up"."""
        return origin_of(row.op).scope.data
