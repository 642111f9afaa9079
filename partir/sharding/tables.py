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

from xdsl.dialects.builtin import DenseIntOrFPElementsAttr, IntegerType
from xdsl.ir import Block, BlockArgument, Operation, SSAValue

from partir.dialect import constants
from partir.dialect.kinds import LAYOUT, happens_once, is_pointwise
from partir.dialect.sdy import ManualComputationOp
from partir.program import Program, item_bytes, origin_of, type_bytes
from partir.sharding.indices import NO_ROW, ROOT, Reader, RegionId, RowIndex, ValueIndex
from partir.sharding.rule import Rule, rule_of, same_rule, shape_of

Kind = Literal["constant_like", "view", "pass_through", "claim", "carry", "predicate"]

PASS_THROUGH = frozenset(
    {
        "stablehlo.convert",
        "stablehlo.reshape",
        "stablehlo.reverse",
        "stablehlo.slice",
        "stablehlo.dynamic_slice",
        "partir.tag",
    }
)


@dataclass(frozen=True)
class View:
    """A value seen through views: `dims[d]` is the dim of `source` that became dim d, or -1 for none.

    x [8, 16] transposed and given a dim of size 1 in front is `View(x, (-1, 1, 0))`, of shape [1, 16, 8].
    """

    source: ValueIndex
    dims: tuple[int, ...]


@dataclass(eq=False)
class OpRow:
    """One op that decides or follows. `operands[i]` is the view read by operand i, or None where that operand is constant-like.

    `index` is its place in its block (for a carry row, which of the carried values it is); `captured` are values its regions
    read from outside; they are wanted replicated.
    """

    index: int
    op: Operation
    kind: Kind
    rule: Rule
    operands: tuple[View | None, ...]
    results: tuple[ValueIndex, ...]
    captured: tuple[ValueIndex, ...] = ()
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
    """What runs in one region, in order: row numbers and inner controls; `arguments` and `returns` are its ends."""

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
    """A sum that a loop carries: in row `add` the body adds the value `addend` to its argument and hands the result back."""

    carry: RowIndex
    add: RowIndex
    addend: ValueIndex
    argument: ValueIndex
    result: ValueIndex
    trips: int


@dataclass(eq=False)
class Tables:
    """Values are numbered arguments first, then results in program order; ops are numbered in program order."""

    program: Program
    values: list[SSAValue]
    shapes: list[tuple[int, ...]]
    rows: list[OpRow]
    outputs: list[View | None]
    kinds: dict[Operation, Kind]
    views: dict[ValueIndex, View]
    index_of: dict[SSAValue, ValueIndex]
    argument_count: int
    producer: list[RowIndex]
    root: RegionItems
    region_of: list[RegionId]
    parent: list[RegionId]
    trips: list[int]

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
        """Whether a value is a parameter, or one only converted or reshaped: gathered anew in each phase that reads it."""
        leaves = self.program.signature.arguments
        return self.made_of({i for i in self.arguments if leaves[i].role == "state"})

    def made_of(self, arguments: Collection[ValueIndex]) -> list[bool]:
        """Whether a value is one of these arguments, or one only converted, reshaped or sliced."""
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
        """Whether a value is a slice that one round of a loop takes of a parameter, perhaps converted or reshaped."""
        flags = [False] * len(self.values)
        for row in self.rows:
            view = row.operands[0] if row.region and row.operands and row.results else None
            if view is not None and self.of_state_alone[row.results[0]]:
                flags[row.results[0]] = row.op.name == "stablehlo.dynamic_slice" or flags[view.source]
        return flags

    @cached_property
    def bytes_of(self) -> list[int]:
        """The global bytes of each value."""
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
        """The bytes of one element of each value; 0 for tokens."""
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
        return origin_of(row.op).phase.data

    def scope(self, row: OpRow) -> str:
        return origin_of(row.op).scope.data


def build(program: Program) -> Tables:
    """Read a program into tables: one pass over its ops, linear in their number."""
    return _Builder(program).run()


class _Builder:
    def __init__(self, program: Program) -> None:
        self.program = program
        self.values: list[SSAValue] = []
        self.index_of: dict[SSAValue, ValueIndex] = {}
        self.kinds: dict[Operation, Kind] = {}
        self.constant_like: set[SSAValue] = set()
        self.views: dict[ValueIndex, View] = {}
        self.rows: list[OpRow] = []
        self.producer: list[RowIndex] = []
        self.region_of: list[RegionId] = []
        self.parent: list[RegionId] = [ROOT]
        self.trips: list[int] = [1]

    def run(self) -> Tables:
        block = self.program.body
        root = RegionItems(ROOT)
        for argument in block.args:
            self.value(argument, ROOT)
        self.block(block, root)
        outputs = [self.view_of(value) for value in root.returns]
        shapes = [shape_of(value.type) for value in self.values]
        return Tables(
            self.program,
            self.values,
            shapes,
            self.rows,
            outputs,
            self.kinds,
            self.views,
            self.index_of,
            len(block.args),
            self.producer,
            root,
            self.region_of,
            self.parent,
            self.trips,
        )

    def value(self, value: SSAValue, region: RegionId) -> ValueIndex:
        index = self.index_of[value] = ValueIndex(len(self.values))
        self.values.append(value)
        self.producer.append(NO_ROW)
        self.region_of.append(region)
        return index

    def view_of(self, value: SSAValue) -> View | None:
        if value in self.constant_like:
            return None
        index = self.index_of[value]
        return self.views.get(index) or View(index, tuple(range(len(shape_of(value.type)))))

    def row(self, row: OpRow) -> RowIndex:
        position = RowIndex(len(self.rows))
        for result in row.results:
            self.producer[result] = position
        self.rows.append(row)
        return position

    def block(self, block: Block, into: RegionItems) -> None:
        for index, op in enumerate(block.ops):
            if op.name in RETURNS:
                into.returns = tuple(op.operands)
                return
            if op.name in CONTROL:
                into.items.append(self.control(op, into.number))
                continue
            for result in op.results:
                self.value(result, into.number)
            kind = self.kinds[op] = _kind_of(op, self.constant_like, self.views, self.index_of)
            if kind == "constant_like":
                self.constant_like.update(op.results)
                continue
            if kind == "view":
                source, dims = self.view_of(op.operands[0]), view_dims(op)
                assert source is not None
                assert dims is not None
                through = tuple(-1 if d < 0 else source.dims[d] for d in dims)
                self.views[self.index_of[op.results[0]]] = View(source.source, through)
                continue
            captured = _captured(op, self.index_of, self.constant_like) if op.regions else ()
            operands = tuple(self.view_of(v) for v in op.operands)
            results = tuple(self.index_of[r] for r in op.results)
            into.items.append(self.row(OpRow(index, op, kind, rule_of(op), operands, results, captured, into.number)))

    def control(self, op: Operation, outer: RegionId) -> Control:
        self.kinds[op] = "carry"
        if op.name == "stablehlo.while":
            return self.loop(op, outer)
        if op.name == "stablehlo.optimization_barrier":
            rows: list[RowIndex] = []
            for k, (operand, result) in enumerate(zip(op.operands, op.results, strict=True)):
                ends = (self.view_of(operand),), (self.value(result, outer),)
                rows.append(self.carry(op, k, *ends, outer))
            return Control(op, tuple(rows), ())
        predicate = self.row(OpRow(0, op, "predicate", SCALAR, (self.view_of(op.operands[0]),), (), (), outer))
        regions = [self.region(op, k, outer, 1) for k in range(len(op.regions))]
        made: list[RowIndex] = []
        for k, result in enumerate(op.results):
            branches = tuple(self.view_of(region.returns[k]) for region in regions)
            made.append(self.carry(op, k, branches, (self.value(result, outer),), outer))
        return Control(op, tuple(made), tuple(regions), predicate)

    def loop(self, op: Operation, outer: RegionId) -> Control:
        """Rows of the carried values come first, as the loop's arguments do; what the body hands back is filled in after it."""
        trips = trip_count(op)
        condition, body = op.regions[0].blocks[0], op.regions[1].blocks[0]
        first, second = self.new_region(outer, 1), self.new_region(outer, trips or 1)
        carries: list[RowIndex] = []
        for k, operand in enumerate(op.operands):
            results = (
                self.value(condition.args[k], first.number),
                self.value(body.args[k], second.number),
                self.value(op.results[k], outer),
            )
            carries.append(self.carry(op, k, (self.view_of(operand), None), results, outer))
        first.arguments = tuple(self.index_of[a] for a in condition.args)
        second.arguments = tuple(self.index_of[a] for a in body.args)
        self.block(condition, first)
        predicate = self.row(OpRow(0, op, "predicate", SCALAR, (self.view_of(first.returns[0]),), (), (), first.number))
        self.block(body, second)
        for position, value in zip(carries, second.returns, strict=True):
            row = self.rows[position]
            row.operands = (row.operands[0], self.view_of(value))
        return Control(op, tuple(carries), (first, second), predicate, trips)

    def carry(
        self,
        op: Operation,
        number: int,
        operands: tuple[View | None, ...],
        results: tuple[ValueIndex, ...],
        region: RegionId,
    ) -> RowIndex:
        rule = same_rule(shape_of(op.results[number].type), len(operands), len(results))
        return self.row(OpRow(number, op, "carry", rule, operands, results, (), region))

    def region(self, op: Operation, number: int, outer: RegionId, trips: int) -> RegionItems:
        items = self.new_region(outer, trips)
        if op.regions[number].blocks:
            self.block(op.regions[number].blocks[0], items)
        return items

    def new_region(self, outer: RegionId, trips: int) -> RegionItems:
        self.parent.append(outer)
        self.trips.append(trips)
        return RegionItems(RegionId(len(self.parent) - 1))


RETURNS = frozenset({"func.return", "stablehlo.return"})
CONTROL = frozenset({"stablehlo.while", "stablehlo.case", "stablehlo.if", "stablehlo.optimization_barrier", "partir.barrier"})
SCALAR = Rule((), ((),), (), frozenset(), frozenset(), None)
"""The rule of a row that reads one scalar."""


def trip_count(op: Operation) -> int | None:
    """How often a `while` runs where its text says so: a counter from one constant to another by a constant step.

    before   while (%i = 0, ...) cond { compare LT, %i, 24 } do { ... return add %i, 1 }
    after    24
    """
    condition, body = op.regions[0].blocks[0], op.regions[1].blocks[0]
    compare = _owner(condition.last_op.operands[0] if condition.last_op is not None else None)
    if compare is None or compare.name != "stablehlo.compare" or str(compare.properties["comparison_direction"]) not in _LESS:
        return None
    counter = compare.operands[0]
    if not isinstance(counter, BlockArgument) or counter.owner is not condition:
        return None
    k = counter.index
    step = _owner(body.last_op.operands[k] if body.last_op is not None else None)
    if step is None or step.name != "stablehlo.add" or body.args[k] not in step.operands:
        return None
    increment = next((v for v in step.operands if v is not body.args[k]), None)
    numbers = [_number(v) for v in (op.operands[k], compare.operands[1], increment)]
    if any(n is None for n in numbers) or not numbers[2]:
        return None
    start, limit, by = (n for n in numbers if n is not None)
    span = limit - start + (1 if "LE" in str(compare.properties["comparison_direction"]) else 0)
    return max(0, -(-span // by))


_LESS = frozenset({"#stablehlo<comparison_direction LT>", "#stablehlo<comparison_direction LE>"})


def _owner(value: SSAValue | None) -> Operation | None:
    return value.owner if value is not None and isinstance(value.owner, Operation) else None


def _number(value: SSAValue | None) -> int | None:
    owner = _owner(value)
    literal = owner.properties.get("value") if owner is not None and owner.name == "stablehlo.constant" else None
    if isinstance(literal, DenseIntOrFPElementsAttr) and isinstance(literal.get_element_type(), IntegerType):
        return int(literal.get_values()[0])
    return None


def _kind_of(
    op: Operation, constant_like: set[SSAValue], views: dict[ValueIndex, View], index_of: dict[SSAValue, ValueIndex]
) -> Kind:
    name = op.name
    if name in ("stablehlo.constant", "stablehlo.iota"):
        return "constant_like"
    if op.operands and (is_pointwise(op) or name in LAYOUT) and constant_like.issuperset(op.operands):
        return "constant_like"
    if name in LAYOUT and op.operands[0] not in constant_like and view_dims(op) is not None:
        return "view"
    if name == "stablehlo.convert" and index_of[op.operands[0]] in views:
        view = views[index_of[op.operands[0]]]
        if -1 in view.dims:
            return "view"
    return "pass_through" if name in PASS_THROUGH else "claim"


def view_dims(op: Operation) -> tuple[int, ...] | None:
    """For each result dim of a view, the operand dim it is, or -1; None when the op does more than that."""
    before, after = shape_of(op.operands[0].type), shape_of(op.results[0].type)
    if op.name == "stablehlo.convert":
        return tuple(range(len(after)))
    if op.name == "stablehlo.transpose":
        return ints(op, "permutation")
    if op.name == "stablehlo.broadcast_in_dim":
        dims = [-1] * len(after)
        for source, target in enumerate(ints(op, "broadcast_dimensions")):
            if before[source] == after[target]:
                dims[target] = source
        return tuple(dims)
    kept = [d for d, size in enumerate(before) if size != 1]
    if [before[d] for d in kept] != [size for size in after if size != 1]:
        return None
    remaining = iter(kept)
    return tuple(next(remaining) if size != 1 else -1 for size in after)


def ints(op: Operation, name: str) -> tuple[int, ...]:
    """A property that is a dense array of integers."""
    attr = op.properties[name]
    return tuple(int(i) for i in attr.get_values())  # type: ignore[attr-defined]


def _captured(op: Operation, index_of: dict[SSAValue, ValueIndex], constant_like: set[SSAValue]) -> tuple[ValueIndex, ...]:
    found: dict[ValueIndex, None] = {}
    for inner in op.walk():
        if inner is op:
            continue
        for value in inner.operands:
            if value in index_of and value not in constant_like:
                found[index_of[value]] = None
    return tuple(found)


def is_splat(op: Operation) -> bool:
    """Whether a constant is one number everywhere."""
    attr = op.properties.get("value")
    return isinstance(attr, DenseIntOrFPElementsAttr) and constants.is_splat(attr)
