"""Reads a program into tables: values and rows numbered in program order, views looked through, control flow laid out.

One pass over the ops. What an op is for the planner - constant-like, a view, passed through, or one that claims - is decided
by `_kind_of`, the kinds are told in `tables`.
"""

from __future__ import annotations

from xdsl.dialects.builtin import DenseIntOrFPElementsAttr, IntegerType
from xdsl.ir import Block, BlockArgument, Operation, SSAValue

from partir.dialect import constants
from partir.dialect.kinds import LAYOUT, is_pointwise
from partir.program import Program
from partir.sharding.indices import NO_ROW, ROOT, RegionId, RowIndex, ValueIndex
from partir.sharding.rule import Rule, rule_of, same_rule, shape_of
from partir.sharding.tables import Control, Kind, OpRow, RegionItems, Tables, View

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
            program=self.program,
            values=self.values,
            shapes=shapes,
            rows=self.rows,
            outputs=outputs,
            kinds=self.kinds,
            views=self.views,
            index_of=self.index_of,
            argument_count=len(block.args),
            producer=self.producer,
            root=root,
            region_of=self.region_of,
            parent=self.parent,
            trips=self.trips,
        )

    def value(self, value: SSAValue, region: RegionId) -> ValueIndex:
        """Number a value of a region."""
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
        """Number a row, which makes its results."""
        position = RowIndex(len(self.rows))
        for result in row.results:
            self.producer[result] = position
        self.rows.append(row)
        return position

    def block(self, block: Block, into: RegionItems) -> None:
        """Read the ops of a block, in order."""
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
            row = OpRow(
                index=index,
                op=op,
                kind=kind,
                rule=rule_of(op),
                operands=operands,
                results=results,
                captured=captured,
                region=into.number,
            )
            into.items.append(self.row(row))

    def control(self, op: Operation, outer: RegionId) -> Control:
        """Read a `while`, `case` or optimization barrier that stands in region `outer`."""
        self.kinds[op] = "carry"
        if op.name == "stablehlo.while":
            return self.loop(op, outer)
        if op.name == "stablehlo.optimization_barrier":
            rows: list[RowIndex] = []
            for k, (operand, result) in enumerate(zip(op.operands, op.results, strict=True)):
                ends = (self.view_of(operand),), (self.value(result, outer),)
                rows.append(self.carry(op, k, *ends, outer))
            return Control(op, tuple(rows), ())
        predicate = self.predicate(op, op.operands[0], outer)
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
        predicate = self.predicate(op, first.returns[0], first.number)
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
        """The row that ties the ends of one carried value together."""
        rule = same_rule(shape_of(op.results[number].type), len(operands), len(results))
        return self.row(OpRow(index=number, op=op, kind="carry", rule=rule, operands=operands, results=results, region=region))

    def predicate(self, op: Operation, value: SSAValue, region: RegionId) -> RowIndex:
        """The row that reads what decides how a `while` or `case` goes on."""
        operands = (self.view_of(value),)
        return self.row(OpRow(index=0, op=op, kind="predicate", rule=SCALAR, operands=operands, results=(), region=region))

    def region(self, op: Operation, number: int, outer: RegionId, trips: int) -> RegionItems:
        """Read a region of an op."""
        items = self.new_region(outer, trips)
        if op.regions[number].blocks:
            self.block(op.regions[number].blocks[0], items)
        return items

    def new_region(self, outer: RegionId, trips: int) -> RegionItems:
        """Number a region that runs so often each time the one around it runs."""
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
