"""Dataflow queries on a program: which values a result is computed from, and whether element by element; all on demand."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property

from xdsl.dialects.builtin import TensorType
from xdsl.dialects.func import FuncOp
from xdsl.ir import Block, Operation, OpResult, SSAValue

from partir.dialect.kinds import MATRIX, is_pointwise
from partir.dialect.sdy import OpShardingRuleAttr
from partir.program import origin_of

SAME = frozenset({"stablehlo.reshape", "partir.tag", "sdy.sharding_constraint"})
"""Ops whose result has the elements of their operand in the same row-major order."""

WRITES = frozenset({"stablehlo.dynamic_update_slice", "stablehlo.scatter"})
"""Ops whose result is their first operand with some elements overwritten or updated."""

BRANCHES = frozenset({"stablehlo.case", "stablehlo.if"})
PICKS = frozenset({"stablehlo.dynamic_slice", "stablehlo.gather"})
"""Ops that take part of their first operand, at run-time indices."""

Node = tuple[SSAValue, int]
"""A dim of a value."""


@dataclass(frozen=True)
class Way:
    """How a result is computed from arguments element by element.

    `arguments` are the numbers of the arguments that pointwise ops lead back to. `added_to` are those of them that reach the
    result through additions alone, without a factor or function. `ends` are the other values where the walk back through
    pointwise ops stops: contractions, reductions, transposes, and whatever is written into some elements. `is_written` says
    whether something is (by a scatter or a dynamic_update_slice).
    """

    arguments: frozenset[int]
    added_to: frozenset[int]
    ends: tuple[SSAValue, ...]
    is_written: bool


class Flow:
    """Dataflow queries on one `main`. Arguments and results are given by number."""

    def __init__(self, main: FuncOp) -> None:
        self.block = main.body.blocks[0]
        self.number: dict[SSAValue, int] = {value: i for i, value in enumerate(self.block.args)}
        self._ways: dict[int, Way] = {}
        self._slots: dict[int, list[list[tuple[int, int]]]] = {}  # memo of `_equal_dims`
        self._clean: set[SSAValue] = set()  # values known not to depend on the backward pass

    @property
    def returned(self) -> Sequence[SSAValue]:
        return _handed_back(self.block)

    def way(self, result: int) -> Way:
        """How a result is computed from arguments, element by element."""
        found = self._ways.get(result)
        if found is None:
            seen = self._walk(result, exact=False)
            writes = [value.op for value in seen if isinstance(value, OpResult) and value.op.name in WRITES]
            written = [value for op in writes for value in op.operands[1:]]
            found = self._ways[result] = Way(
                frozenset(self.number[value] for value in seen if value in self.number),
                frozenset(self.number[value] for value in self._walk(result, exact=True) if value in self.number),
                (*(value for value, before in seen.items() if not before and value not in self.number), *written),
                bool(written),
            )
        return found

    def _walk(self, result: int, *, exact: bool) -> dict[SSAValue, list[SSAValue]]:
        """The values met on the way back from a result, each with the values that its elements are computed from."""
        seen: dict[SSAValue, list[SSAValue]] = {}
        stack = [self.returned[result]]
        while stack:
            value = stack.pop()
            if value not in seen:
                seen[value] = _elements_of(value, exact)
                stack += seen[value]
        return seen

    def rank(self, argument: int) -> int:
        """How many dims an argument has."""
        return len(shape_of(self.block.args[argument]))

    def unchanged(self, argument: int, result: int) -> bool:
        """Whether a result is the argument itself, unchanged."""
        return self.returned[result] is self.block.args[argument]

    def after_backward(self, result: int) -> bool:
        """Whether a result depends on values of the backward pass (or of its recomputed forward pass)."""
        return self.is_after_backward(self.returned[result])

    def is_after_backward(self, value: SSAValue) -> bool:
        """Whether a value depends on values of the backward pass (or of its recomputed forward pass)."""
        stack = [value]
        seen: set[SSAValue] = set()
        while stack:
            value = stack.pop()
            if value in seen or value in self._clean:
                continue
            if isinstance(value, OpResult) and origin_of(value.op).phase.data != "forward":
                return True
            seen.add(value)
            stack += _reads(value)
        self._clean |= seen
        return False

    def arguments_of(self, values: Iterable[SSAValue]) -> set[int]:
        """The arguments that any of these values is computed from."""
        return {self.number[value] for value in self.ancestors(values) if value in self.number}

    def sums_over(self, result: int, dims: frozenset[Node]) -> bool:
        """Whether a result is computed by a sum (or maximum, or contraction) over one of these dims."""
        return any(
            isinstance(value, OpResult) and not dims.isdisjoint(_reduced(value.op))
            for value in self._backwards([self.returned[result]])
        )

    def ancestors(self, values: Iterable[SSAValue]) -> set[SSAValue]:
        """All values that `values` are computed from, `values` included."""
        return set(self._backwards(values))

    def _backwards(self, values: Iterable[SSAValue]) -> Iterator[SSAValue]:
        stack = list(values)
        seen = set(stack)
        while stack:
            value = stack.pop()
            yield value
            for source in _reads(value):
                if source not in seen:
                    seen.add(source)
                    stack.append(source)

    def node(self, argument: int, dim: int) -> Node:
        """A dim of an argument."""
        return self.block.args[argument], dim

    @cached_property
    def batches(self) -> list[frozenset[Node]]:
        """The dims that look like a batch: for each, the set of all dims of the program that are indexed alike.

        A dim looks like a batch if every argument that has it has it as dim 0, and if the forward pass neither contracts over
        it nor takes parts of it by index.
        """
        classes: dict[Node, list[Node]] = {}
        for node in list(self._classes):
            classes.setdefault(self._root(node), []).append(node)
        excluded = {self._root(node) for node in self._contracted_or_picked()}
        for value in self.block.args:
            for dim in range(1, len(shape_of(value))):
                excluded.add(self._root((value, dim)))
        roots = {self._root((value, 0)): None for value in self.block.args if shape_of(value)}
        return [frozenset(classes.get(root, [root])) for root in roots if root not in excluded]

    def _contracted_or_picked(self) -> Iterator[Node]:
        """The dims that cannot be a batch: contracted in the forward pass of a program that has a backward pass, or indexed."""
        for op in self.block.walk():
            if op.name in MATRIX and self._has_backward and origin_of(op).phase.data == "forward":
                yield from _contracted(op)
            elif op.name in PICKS:
                yield from _picked(op)

    @cached_property
    def _has_backward(self) -> bool:
        return any(origin_of(op).phase.data != "forward" for op in self.block.walk())

    @cached_property
    def _classes(self) -> dict[Node, Node]:
        """A union-find (dim to parent) over all dims of the program; dims that one index runs over are in one set."""
        parent: dict[Node, Node] = {}
        for op in self.block.walk():
            for alike in _equal_dims(op, self._slots):
                first = _find(parent, alike[0])
                for other in alike[1:]:
                    parent[_find(parent, other)] = first
        return parent

    def _root(self, node: Node) -> Node:
        return _find(self._classes, node)

    def carries_rows(self, argument: int, values: Iterable[SSAValue]) -> bool:
        """Whether dim 0 of an argument is also dim 0 of one of these values: no op on the way moves or splits it."""
        rows = {self.node(argument, 0)}
        for _ in range(2):  # a second time for what the body of a loop hands back to its own arguments
            for op in self.block.walk():
                for alike in _equal_dims(op, self._slots):
                    if any(node in rows and node[0].owner is not op for node in alike):
                        rows.update(node for node in alike if node[0].owner is op or op.regions)
        return any((value, 0) in rows for value in values)


def repeats_rows(value: SSAValue) -> bool:
    """Whether all rows of a value are equal, because it was broadcast along dim 0 (true of arguments and scalars, too)."""
    if not isinstance(value, OpResult) or not shape_of(value):
        return True
    rule = _rule(value.op)
    if value.op.name != "stablehlo.broadcast_in_dim" or rule is None:
        return False
    (operand,), (result,) = rule.operands, rule.results
    return set(result[0]).isdisjoint(factor for own in operand for factor in own)


def _find(parent: dict[Node, Node], node: Node) -> Node:
    root = parent.setdefault(node, node)
    while root != parent[root]:
        root = parent[root]
    while node != root:
        parent[node], node = root, parent[node]
    return root


def shape_of(value: SSAValue) -> tuple[int, ...]:
    """The shape of a value; () for what is no tensor."""
    return value.type.get_shape() if isinstance(value.type, TensorType) else ()


def _handed_back(block: Block) -> Sequence[SSAValue]:
    assert block.last_op is not None
    return block.last_op.operands


def _ends_of(op: Operation, number: int) -> list[SSAValue] | None:
    """For a loop, branch or barrier: the values that its result `number` is equal to (what its regions return, or the operand).
    None for any other op."""
    if op.name == "stablehlo.while":
        return [_handed_back(op.regions[1].blocks[0])[number]]
    if op.name in BRANCHES:
        return [_handed_back(region.blocks[0])[number] for region in op.regions]
    return [op.operands[number]] if op.name == "stablehlo.optimization_barrier" else None


def _of_loop(value: SSAValue) -> list[SSAValue]:
    """For an argument of a loop's region: the initial value and what the body hands back; empty for any other argument."""
    block = value.owner
    op = block.parent_op() if isinstance(block, Block) else None
    if op is None or op.name != "stablehlo.while":
        return []
    number = next(i for i, own in enumerate(block.args) if own is value) if isinstance(block, Block) else 0
    return [op.operands[number], _handed_back(op.regions[1].blocks[0])[number]]


def handed_on(value: SSAValue) -> list[SSAValue]:
    """The values of which `value` is a copy: one step back through a loop, branch, barrier, select, reshape or convert.

    Where there are several, `value` is one of them. Empty for a value that is computed.
    """
    if not isinstance(value, OpResult):
        return _of_loop(value)
    op = value.op
    ends = _ends_of(op, value.index)
    if ends is not None:
        return ends
    if op.name == "stablehlo.select":
        return list(op.operands[1:])
    return [op.operands[0]] if op.name in SAME or op.name == "stablehlo.convert" else []


def _elements_of(value: SSAValue, exact: bool) -> list[SSAValue]:
    """The values from whose elements, position by position, the elements of `value` are computed: one step back.

    Empty if the op is not pointwise. `exact` goes back through copies, additions and the minuend of subtractions only.
    """
    if isinstance(value, OpResult) and value.op.name == "stablehlo.select" and not exact:
        return [operand for operand in value.op.operands if shape_of(operand) == shape_of(value)]
    through = handed_on(value)
    if through or not isinstance(value, OpResult):
        return through
    op = value.op
    if op.name in WRITES:
        return [op.operands[0]]
    if not is_pointwise(op):
        return []
    operands = list(op.operands)
    if exact:
        operands = operands[: {"stablehlo.add": 2, "stablehlo.subtract": 1}.get(op.name, 0)]
    return [operand for operand in operands if shape_of(operand) == shape_of(value)]


def _reads(value: SSAValue) -> Sequence[SSAValue]:
    """Everything a value is computed from, one step back."""
    if not isinstance(value, OpResult):
        return _of_loop(value)
    op = value.op
    ends = _ends_of(op, value.index)
    if ends is None:
        return op.operands
    if op.name == "stablehlo.while":
        return [*ends, op.operands[value.index], *_handed_back(op.regions[0].blocks[0])]
    return [*ends, op.operands[0]] if op.name in BRANCHES else ends


def _rule(op: Operation) -> OpShardingRuleAttr | None:
    found = op.attributes.get(OpShardingRuleAttr.KEY)
    return found if isinstance(found, OpShardingRuleAttr) else None


def _equal_dims(op: Operation, memo: dict[int, list[list[tuple[int, int]]]]) -> Iterator[list[Node]]:
    """The lists of dims of an op's operands and results (in this order) that one index runs over.

    Of a dim that the op splits or merges, its major factor decides. `memo` keeps the answer for each rule, by `id`.
    """
    groups: list[list[SSAValue]] = []
    if op.name == "stablehlo.while":
        ends = zip(op.operands, op.regions[0].blocks[0].args, op.regions[1].blocks[0].args, op.results, strict=True)
        groups = [[*own, back] for own, back in zip(ends, _handed_back(op.regions[1].blocks[0]), strict=True)]
    elif op.name in BRANCHES or op.name == "stablehlo.optimization_barrier":
        groups = [[*(_ends_of(op, i) or ()), result] for i, result in enumerate(op.results)]
    rule = _rule(op)
    if rule is None and op.name in SAME:
        groups = [[op.operands[0], op.results[0]]]
    for values in groups:
        for dim in range(len(shape_of(values[-1]))):
            yield [(value, dim) for value in values]
    if rule is not None and not groups:
        alike = memo.get(id(rule))
        if alike is None:
            alike = memo[id(rule)] = _slots_alike(rule)
        values = (*op.operands, *op.results) if alike else ()
        yield from ([(values[slot], dim) for slot, dim in places] for places in alike)


def _slots_alike(rule: OpShardingRuleAttr) -> list[list[tuple[int, int]]]:
    """For each factor that is in more than one place, its places: (number of the operand or result, dim)."""
    factors: dict[int, list[tuple[int, int]]] = {}
    for slot, dims in enumerate((*rule.operands, *rule.results)):
        for dim, own in enumerate(dims):
            if own:
                factors.setdefault(own[0], []).append((slot, dim))
    return [places for places in factors.values() if len(places) > 1]


def _reduced(op: Operation) -> list[Node]:
    """The dims that an op sums (or takes the maximum) over."""
    rule = _rule(op)
    if rule is None or not rule.reduction:
        return []
    pairs = zip(op.operands, rule.operands, strict=True)
    return [(v, d) for v, dims in pairs for d, own in enumerate(dims) if own and own[0] in rule.reduction]


def _contracted(op: Operation) -> list[Node]:
    """The dims of a contraction's operands that its result does not have."""
    rule = _rule(op)
    if rule is None:
        return []
    kept = {factor for dims in rule.results for own in dims for factor in own}
    pairs = zip(op.operands, rule.operands, strict=True)
    return [(v, d) for v, dims in pairs for d, own in enumerate(dims) if kept.isdisjoint(own)]


def _picked(op: Operation) -> list[Node]:
    """The dims of an op's first operand of which it takes a part by index."""
    rule = _rule(op)
    kept = {own[0] for own in rule.results[0] if own} if rule is not None else set[int]()
    sizes = shape_of(op.operands[0])
    takes_all = math.prod(shape_of(op.results[0])) >= math.prod(sizes) and op.name == "stablehlo.dynamic_slice"
    dims = rule.operands[0] if rule is not None else [()] * len(sizes)
    return [(op.operands[0], d) for d, own in enumerate(dims) if not takes_all and (not own or own[0] not in kept)]
