"""A program as flat tables: which values and dims each op touches, with views looked through and free values cut loose.

Three kinds of value get special care:

- *free*: constants, iota, masks and whatever is computed from them alone. They are made again at each use, in the layout
  that use wants; they never tie one layer to another and are never resharded.
- *views*: transposes, broadcasts and reshapes that only add or drop dims of size 1. A use of a view is a use of its
  source: whatever the use wants is asked of the source, where a reshard is smallest.
- *follow* ops: converts, reshapes that split or merge dims, tags. They lie as their operand actually lies.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from typing import Literal

from xdsl.dialects.builtin import DenseIntOrFPElementsAttr
from xdsl.dialects.func import ReturnOp
from xdsl.ir import Operation, SSAValue

from partir.dialect.kinds import LAYOUT, is_host_effect, is_pointwise
from partir.program import Program, origin_of, type_bytes
from partir.sharding.rule import Rule, rule_of, shape_of

Kind = Literal["free", "view", "follow", "claim"]

FOLLOW = frozenset({"stablehlo.convert", "stablehlo.reshape", "partir.tag"})


@dataclass(frozen=True)
class View:
    """A value seen through views: `source` is a value index, `dims[d]` its dim that became dim d, or -1 for none."""

    source: int
    dims: tuple[int, ...]


@dataclass(eq=False)
class OpRow:
    """One op that decides or follows. `operands[i]` is the view read by operand i, or None where that operand is free.

    `captured` are values its regions read from outside; they are wanted whole.
    """

    index: int
    op: Operation
    kind: Kind
    rule: Rule
    operands: tuple[View | None, ...]
    results: tuple[int, ...]
    captured: tuple[int, ...] = ()


@dataclass(eq=False)
class Tables:
    """Values are numbered arguments first, then results in program order; ops are numbered in program order."""

    program: Program
    values: list[SSAValue]
    shapes: list[tuple[int, ...]]
    rows: list[OpRow]
    outputs: list[View | None]
    kinds: dict[Operation, Kind]
    views: dict[int, View]
    index_of: dict[SSAValue, int]
    argument_count: int
    producer: list[int] = field(default_factory=list[int])

    @cached_property
    def uses(self) -> list[list[tuple[int, int]]]:
        """For each value, the (row position, operand) pairs that read it; outputs read as row -1 - result index."""
        uses: list[list[tuple[int, int]]] = [[] for _ in self.values]
        for position, row in enumerate(self.rows):
            for slot, view in enumerate(row.operands):
                if view is not None:
                    uses[view.source].append((position, slot))
            for value in row.captured:
                uses[value].append((position, -1))
        for result, view in enumerate(self.outputs):
            if view is not None:
                uses[view.source].append((-1 - result, 0))
        return uses

    @cached_property
    def host_effects(self) -> list[int]:
        """The rows that call back to the host for an effect."""
        return [position for position, row in enumerate(self.rows) if is_host_effect(row.op)]

    @cached_property
    def of_state_alone(self) -> list[bool]:
        """Whether a value is a parameter, or one only converted or reshaped: gathered anew in each phase that reads it."""
        flags = [leaf.role == "state" for leaf in self.program.signature.arguments]
        flags += [False] * (len(self.values) - len(flags))
        for row in self.rows:
            if row.kind == "follow" and (view := row.operands[0]) is not None and flags[view.source]:
                flags[row.results[0]] = True
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

    def view_of(self, value: SSAValue) -> View | None:
        """What a value is a view of (itself, if of nothing else); None when it is free."""
        owner = value.owner
        if isinstance(owner, Operation) and self.kinds.get(owner) == "free":
            return None
        index = self.index_of[value]
        return self.views.get(index) or View(index, tuple(range(len(self.shapes[index]))))

    def phase(self, row: OpRow) -> str:
        return origin_of(row.op).phase.data

    def scope(self, row: OpRow) -> str:
        return origin_of(row.op).scope.data


def build(program: Program) -> Tables:
    """Read a program into tables: one pass over its ops, linear in their number."""
    block = program.body
    values: list[SSAValue] = list(block.args)
    index_of: dict[SSAValue, int] = {value: i for i, value in enumerate(values)}
    kinds: dict[Operation, Kind] = {}
    free: set[SSAValue] = set()
    views: dict[int, View] = {}
    rows: list[OpRow] = []
    producer = [-1] * len(values)
    outputs: list[View | None] = []

    def view_of(value: SSAValue) -> View | None:
        if value in free:
            return None
        index = index_of[value]
        return views.get(index) or View(index, tuple(range(len(shape_of(value.type)))))

    for index, op in enumerate(block.ops):
        if isinstance(op, ReturnOp):
            outputs = [view_of(value) for value in op.operands]
            break
        for result in op.results:
            index_of[result] = len(values)
            values.append(result)
            producer.append(-1)
        kind = _kind_of(op, free, views, index_of)
        kinds[op] = kind
        if kind == "free":
            free.update(op.results)
            continue
        if kind == "view":
            source = view_of(op.operands[0])
            assert source is not None
            dims = view_dims(op)
            assert dims is not None
            views[index_of[op.results[0]]] = View(source.source, tuple(-1 if d < 0 else source.dims[d] for d in dims))
            continue
        for result in op.results:
            producer[index_of[result]] = len(rows)
        captured = _captured(op, index_of, free) if op.regions else ()
        rows.append(
            OpRow(
                index,
                op,
                kind,
                rule_of(op),
                tuple(view_of(v) for v in op.operands),
                tuple(index_of[r] for r in op.results),
                captured,
            )
        )
    shapes = [shape_of(value.type) for value in values]
    return Tables(program, values, shapes, rows, outputs, kinds, views, index_of, len(block.args), producer)


def _kind_of(op: Operation, free: set[SSAValue], views: dict[int, View], index_of: dict[SSAValue, int]) -> Kind:
    name = op.name
    if name in ("stablehlo.constant", "stablehlo.iota"):
        return "free"
    if op.operands and (is_pointwise(op) or name in LAYOUT) and free.issuperset(op.operands):
        return "free"
    if name in LAYOUT and op.operands[0] not in free and view_dims(op) is not None:
        return "view"
    if name == "stablehlo.convert" and index_of[op.operands[0]] in views:
        view = views[index_of[op.operands[0]]]
        if -1 in view.dims:
            return "view"
    return "follow" if name in FOLLOW else "claim"


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


def _captured(op: Operation, index_of: dict[SSAValue, int], free: set[SSAValue]) -> tuple[int, ...]:
    found: dict[int, None] = {}
    for inner in op.walk():
        if inner is op:
            continue
        for value in inner.operands:
            if value in index_of and value not in free:
                found[index_of[value]] = None
    return tuple(found)


def is_splat(op: Operation) -> bool:
    """Whether a constant is one number everywhere."""
    attr = op.properties.get("value")
    return isinstance(attr, DenseIntOrFPElementsAttr) and attr.is_splat()
