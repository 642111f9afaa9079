"""An op's sharding rule as the deciders read it: factors, where they sit, which may be cut, and what a cut leaves unreduced.

Read from the `sdy.op_sharding_rule` on each op (Shardy's own, or ours where it has none). A factor that cannot be cut
soundly (needs replication, is permuted, sits in only some of the results) is *closed*.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache

from xdsl.dialects.builtin import TensorType, i1
from xdsl.ir import Attribute, Operation, SSAValue
from xdsl_jax.dialects.stablehlo.data_movement_ops import GatherOp, ScatterOp

from partir.dialect.reduction import body_kind, is_neutral
from partir.dialect.sdy import OpShardingRuleAttr
from partir.dialect.stablehlo_attributes import ConvDimensionNumbersAttr

SUMMING = frozenset({"stablehlo.dot_general", "stablehlo.convolution", "stablehlo.gather", "stablehlo.dynamic_slice"})
SOURCES = frozenset({"stablehlo.broadcast_in_dim", "stablehlo.iota", "stablehlo.constant"})

Positions = tuple[tuple[int, ...], ...]


@dataclass(frozen=True)
class Rule:
    """Factors of one op: `sizes[f]`; for each operand and result, per dim, the factors from major to minor.

    `reduction` holds the factors summed away, with `kind` saying how their pieces are put together.
    """

    sizes: tuple[int, ...]
    operands: tuple[Positions, ...]
    results: tuple[Positions, ...]
    reduction: frozenset[int]
    closed: frozenset[int]
    kind: str | None
    indexed: frozenset[int] = frozenset()
    """Factors of rows picked by index: cut, each device works on its own rows and masks the rest."""


def shape_of(type_: Attribute) -> tuple[int, ...]:
    """The static shape of a tensor type; () for anything that is not a tensor (tokens)."""
    return type_.get_shape() if isinstance(type_, TensorType) else ()


def _kind_of(op: Operation) -> str | None:
    """How pieces of a cut reduction are put together; None when a cut would be wrong, or no collective could do it."""
    if op.name in SUMMING:
        return "add"
    kind = body_kind(op)
    if kind in ("and", "or") and _element(op.results[0]) != i1:
        return None
    if op.name == "stablehlo.reduce" and kind is not None and not is_neutral(op.operands[1], kind):
        return None
    return kind


def _element(value: SSAValue) -> Attribute | None:
    return value.type.element_type if isinstance(value.type, TensorType) else None


def closed_rule(op: Operation) -> Rule:
    """The rule of an op nobody can see into: each dim a factor of its own, all closed."""
    sizes: list[int] = []

    def fresh(types: Sequence[Attribute]) -> tuple[Positions, ...]:
        out: list[Positions] = []
        for type_ in types:
            dims = shape_of(type_)
            out.append(tuple((len(sizes) + i,) for i in range(len(dims))))
            sizes.extend(dims)
        return tuple(out)

    operands = fresh([v.type for v in op.operands])
    results = fresh([v.type for v in op.results])
    return Rule(tuple(sizes), operands, results, frozenset(), frozenset(range(len(sizes))), None)


@cache
def same_rule(shape: tuple[int, ...], operands: int, results: int) -> Rule:
    """The rule of values that are one: every dim of all of them is the same index."""
    dims = tuple((d,) for d in range(len(shape)))
    return Rule(shape, (dims,) * operands, (dims,) * results, frozenset(), frozenset(), None)


_memo: dict[object, tuple[Rule, object]] = {}


def rule_of(op: Operation) -> Rule:
    """The rule of `op`, memoised by rule, types and reduction kind.

    Hashing an attribute walks it; the bridge makes each distinct attribute once, so identity is the key (and the memo
    keeps what it names alive).
    """
    attr = op.attributes.get("sdy.sharding_rule")
    if not isinstance(attr, OpShardingRuleAttr):
        return closed_rule(op)
    kind = _kind_of(op)
    says = [attr, *op.properties.values(), *(v.type for v in op.operands), *(v.type for v in op.results)]
    key = (op.name, kind, *map(id, says))
    found = _memo.get(key)
    if found is None:
        found = _memo[key] = (_read(op, attr, kind), says)
    return found[0]


def _read(op: Operation, attr: OpShardingRuleAttr, kind: str | None) -> Rule:
    operands, results, sizes = attr.operands, attr.results, attr.sizes
    reduction = frozenset(attr.reduction)
    closed = set(attr.need_replication) | set(attr.permutation) | set(attr.blocked_propagation)
    in_operands = {f for dims in operands for factors in dims for f in factors}
    for factor in range(len(sizes)):
        in_results = [any(factor in factors for factors in dims) for dims in results]
        if factor in reduction:
            if kind is None or any(in_results):
                closed.add(factor)
        elif not all(in_results) or (factor not in in_operands and op.name not in SOURCES):
            closed.add(factor)
    indexed: set[int] = set()
    if op.name in ("stablehlo.gather", "stablehlo.scatter"):
        indexed, windows = _indexed(op, operands[0])
        closed |= windows
    if op.name == "stablehlo.dynamic_slice":
        indexed = set(reduction)
    if op.name == "stablehlo.dynamic_update_slice":
        placed = [d for d, (a, b) in enumerate(zip(operands[0], operands[1], strict=True)) if a != b]
        factors = {f for d in placed for f in (*operands[0][d], *operands[1][d])}
        if len(placed) == 1 and shape_of(op.operands[1].type)[placed[0]] == 1:
            indexed = set(operands[0][placed[0]])
            closed |= factors - indexed
        else:
            closed |= factors
    if op.name == "stablehlo.convolution":
        closed |= _windowed(op, operands, results)
    types = [*(v.type for v in op.operands), *(v.type for v in op.results)]
    for dims, type_ in zip((*operands, *results), types, strict=True):
        for factors, size in zip(dims, shape_of(type_), strict=True):
            product = 1
            for factor in factors:
                product *= sizes[factor]
            if product != size:
                closed.update(factors)
    return Rule(sizes, operands, results, reduction - closed, frozenset(closed), kind, frozenset(indexed))


def _indexed(op: Operation, table: Positions) -> tuple[set[int], set[int]]:
    """Factors of the dims that are picked by index, and those of them that must stay closed.

    A row's owner can be told when one dim is indexed and each index picks one row of it.
    """
    if isinstance(op, GatherOp):
        numbers = op.dimension_numbers
        indexed, single = numbers.start_index_map, numbers.collapsed_slice_dims
    else:
        assert isinstance(op, ScatterOp)
        scatter = op.scatter_dimension_numbers
        indexed, single = scatter.scatter_dims_to_operand_dims, scatter.inserted_window_dims
    rows = {d.value.data for d in single}
    dims = [d.value.data for d in indexed]
    factors = {f for d in dims for f in table[d]}
    return factors, factors if len(dims) != 1 or dims[0] not in rows else set()


def _windowed(op: Operation, operands: Sequence[Positions], results: Sequence[Positions]) -> set[int]:
    """Factors of a convolution's spatial dims: its window slides over them, so that a slice needs its neighbours."""
    numbers = op.properties["dimension_numbers"]
    assert isinstance(numbers, ConvDimensionNumbersAttr)
    d = numbers.data
    spatial = ((operands[0], d.input_spatial), (operands[1], d.kernel_spatial), (results[0], d.output_spatial))
    return {f for dims, places in spatial for place in places for f in dims[place]}
