"""Sharding rules where Shardy has none or too little: one function each. Everything else comes from Shardy itself.

Each rule here has a test that executes it: split along each factor, run the pieces, put them together, compare.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping

from xdsl.dialects.builtin import DenseArrayBase, IntegerAttr, StringAttr, TensorType
from xdsl.ir import Attribute, Operation
from xdsl_jax.dialects.stablehlo.attributes import DotAttr

from partir.dialect.kinds import is_pointwise
from partir.dialect.sdy import OpShardingRuleAttr
from partir.dialect.stablehlo_attributes import ConvDimensionNumbersAttr

RuleBuilder = Callable[[Operation], OpShardingRuleAttr | None]


def pointwise(op: Operation) -> OpShardingRuleAttr | None:
    """Every dim of every operand and result is the same index: `([i, j], [i, j])->([i, j])`."""
    shapes = {_shape(v.type) for v in (*op.operands, *op.results)}
    if len(shapes) != 1:
        return None
    (shape,) = shapes
    dims = [[d] for d in range(len(shape))]
    return OpShardingRuleAttr.of([dims] * len(op.operands), [dims] * len(op.results), shape)


def aligned_slice(op: Operation) -> OpShardingRuleAttr | None:
    """A slice that takes one of several equal blocks keeps the position within the block: `([i, jk])->([i, k])`.

    What splits a fused projection of queries, keys and values. The block number j is closed.
    """
    start, limit, stride = (_ints(op, name) for name in ("start_indices", "limit_indices", "strides"))
    return _blocks(op, 0, [s if st == 1 else None for s, st in zip(start, stride, strict=True)], limit)


def aligned_pad(op: Operation) -> OpShardingRuleAttr | None:
    """A pad by whole blocks, the gradient of an aligned slice: `([i, k], [])->([i, jk])`.

    Any other pad shifts every place, so that its dim is one factor in the operand and another in the result, both whole: also
    where it adds at one end what it takes away at the other (Shardy calls that the same index, as the sizes are equal).
    """
    low, high, interior = (_ints(op, name) for name in ("edge_padding_low", "edge_padding_high", "interior_padding"))
    small, large = _shape(op.operands[0].type), _shape(op.results[0].type)
    operand: list[list[int]] = []
    result: list[list[int]] = []
    sizes: list[int] = []
    for d, size in enumerate(small):
        if low[d] == high[d] == interior[d] == 0:
            operand.append([len(sizes)])
            result.append([len(sizes)])
            sizes.append(size)
        elif interior[d] == 0 and size > 1 and low[d] % size == 0 and high[d] % size == 0 and min(low[d], high[d]) >= 0:
            result.append([len(sizes), len(sizes) + 1])
            operand.append([len(sizes) + 1])
            sizes += [large[d] // size, size]
        else:
            operand.append([len(sizes)])
            result.append([len(sizes) + 1])
            sizes += [size, large[d]]
    return OpShardingRuleAttr.of([operand, []], [result], sizes)


def equal_concatenate(op: Operation) -> OpShardingRuleAttr | None:
    """Equal operands side by side keep the position within each: `([i, k], [i, k])->([i, jk])`."""
    attr = op.properties.get("dimension")
    assert isinstance(attr, IntegerAttr)
    dim = attr.value.data
    shapes = {_shape(v.type) for v in op.operands}
    if len(shapes) != 1 or len(op.operands) < 2:
        return None
    (shape,) = shapes
    if shape[dim] < 2:
        return None
    dims = [[d] for d in range(len(shape))]
    outer = len(shape)
    result = [[outer, d] if d == dim else [d] for d in range(len(shape))]
    return OpShardingRuleAttr.of([dims] * len(op.operands), [result], [*shape, len(op.operands)])


def picked_slice(op: Operation) -> OpShardingRuleAttr | None:
    """A slice of one row at a running index: the row's owner has it, the others add nothing: `([i, k], [], [])->([j, k])`
    with i summed. Other partial windows need their dim whole."""
    window = _ints(op, "slice_sizes")
    operand: list[list[int]] = []
    result: list[list[int]] = []
    sizes: list[int] = []
    summed: list[int] = []
    whole: list[int] = []
    for size, taken in zip(_shape(op.operands[0].type), window, strict=True):
        operand.append([len(sizes)])
        if taken == size:
            result.append([len(sizes)])
            sizes.append(size)
            continue
        (summed if taken == 1 and not summed else whole).append(len(sizes))
        result.append([len(sizes) + 1])
        sizes += [size, taken]
        whole.append(len(sizes) - 1)
    scalars: list[list[list[int]]] = [[]] * (len(op.operands) - 1)
    return OpShardingRuleAttr.of([operand, *scalars], [result], sizes, reduction=summed, need_replication=whole)


def placed_update(op: Operation) -> OpShardingRuleAttr | None:
    """An update at a running index: dims it covers are shared, `([i, k], [j, k], [], [])->([i, k])`; who may cut i, the dim it
    is placed in, depends on how much of it the update has."""
    whole, part = _shape(op.operands[0].type), _shape(op.operands[1].type)
    sizes = list(whole)
    dims = [[d] for d in range(len(whole))]
    update: list[list[int]] = []
    for d, (size, taken) in enumerate(zip(whole, part, strict=True)):
        if taken == size:
            update.append([d])
        else:
            update.append([len(sizes)])
            sizes.append(taken)
    inner = list(range(len(whole), len(sizes)))
    scalars: list[list[list[int]]] = [[]] * (len(op.operands) - 2)
    return OpShardingRuleAttr.of([dims, update, *scalars], [dims], sizes, need_replication=inner)


def top_k(op: Operation) -> OpShardingRuleAttr | None:
    """The k largest along the last dim, which must be whole; dims before it are batch: `([i, j])->([i, k], [i, k])`."""
    shape, picked = _shape(op.operands[0].type), _shape(op.results[0].type)
    last = len(shape) - 1
    batch = [[d] for d in range(last)]
    result = [*batch, [last + 1]]
    return OpShardingRuleAttr.of(
        [[*batch, [last]]], [result] * len(op.results), [*shape, picked[-1]], need_replication=[last, last + 1]
    )


def grouped_convolution(op: Operation) -> OpShardingRuleAttr | None:
    """Groups of a convolution are independent: `([b, ., gi], [., i, go])->([b, ., go])`, and where the batch is grouped (the
    gradient of a kernel) `([gb, ., i], [., i, go])->([b, ., go])`. Spatial dims are windows, and closed."""
    groups = {name: _count(op, name) for name in ("feature_group_count", "batch_group_count")}
    if max(groups.values()) == 1 or min(groups.values()) > 1:
        return None
    numbers = op.properties["dimension_numbers"]
    assert isinstance(numbers, ConvDimensionNumbersAttr)
    d = numbers.data
    lhs, kernel, output = (_shape(v.type) for v in (*op.operands, op.results[0]))
    group, by_batch = max(groups.values()), groups["batch_group_count"] > 1
    sizes = [group, output[d.output_batch], kernel[d.kernel_input_feature], output[d.output_feature] // group]
    g, b, i, o = range(4)
    whole = [b] if by_batch else []

    def dims(shape: tuple[int, ...], named: dict[int, list[int]]) -> list[list[int]]:
        found: list[list[int]] = []
        for dim, size in enumerate(shape):
            if dim not in named:
                whole.append(len(sizes))
                named[dim] = [len(sizes)]
                sizes.append(size)
            found.append(named[dim])
        return found

    operands = [
        dims(lhs, {d.input_batch: [g, b] if by_batch else [b], d.input_feature: [i] if by_batch else [g, i]}),
        dims(kernel, {d.kernel_input_feature: [i], d.kernel_output_feature: [g, o]}),
    ]
    result = dims(output, {d.output_batch: [b], d.output_feature: [g, o]})
    return OpShardingRuleAttr.of(operands, [result], sizes, reduction=[i], need_replication=whole)


def eigendecomposition(op: Operation) -> OpShardingRuleAttr | None:
    """Eigenvalues of a symmetric matrix, a call on TPU: it needs the matrix whole, which Shardy leaves open; dims before it are
    batch: `([b, i, j])->([b, k, l], [b, m])` with all but b whole."""
    target = op.properties.get("call_target_name")
    if not isinstance(target, StringAttr) or target.data != "Eigh":
        return None
    batch = len(_shape(op.operands[0].type)) - 2
    sizes = list(_shape(op.operands[0].type)[:batch])

    def dims(shape: tuple[int, ...]) -> list[list[int]]:
        first = len(sizes)
        sizes.extend(shape[batch:])
        return [[f] for f in (*range(batch), *range(first, len(sizes)))]

    operands = [dims(_shape(v.type)) for v in op.operands]
    results = [dims(_shape(v.type)) for v in op.results]
    return OpShardingRuleAttr.of(operands, results, sizes, need_replication=range(batch, len(sizes)))


def _count(op: Operation, name: str) -> int:
    attr = op.properties.get(name)
    return attr.value.data if isinstance(attr, IntegerAttr) else 1


def _blocks(op: Operation, operand: int, start: list[int | None], limit: tuple[int, ...]) -> OpShardingRuleAttr | None:
    shape = _shape(op.operands[operand].type)
    source: list[list[int]] = []
    result: list[list[int]] = []
    sizes: list[int] = []
    split = False
    for d, size in enumerate(shape):
        first = start[d]
        if first is None:
            return None
        width = limit[d] - first
        if width == size:
            source.append([len(sizes)])
            result.append([len(sizes)])
            sizes.append(size)
        elif width > 1 and size % width == 0 and first % width == 0:
            source.append([len(sizes), len(sizes) + 1])
            result.append([len(sizes) + 1])
            sizes += [size // width, width]
            split = True
        else:
            return None
    return OpShardingRuleAttr.of([source], [result], sizes) if split else None


def transpose(op: Operation) -> OpShardingRuleAttr | None:
    """Dims in another order: `([j, i])->([i, j])`."""
    source = _ints(op, "permutation")
    order = [[source.index(d)] for d in range(len(source))]
    return OpShardingRuleAttr.of([order], [[[d] for d in range(len(order))]], _shape(op.results[0].type))


def broadcast(op: Operation) -> OpShardingRuleAttr | None:
    """Dims that are there keep their index, new and repeated ones get one of their own: `([i])->([i, j])`."""
    small, large = _shape(op.operands[0].type), _shape(op.results[0].type)
    sizes = list(large)
    operand: list[list[int]] = []
    for d, target in enumerate(_ints(op, "broadcast_dimensions")):
        operand.append([target if small[d] == large[target] else len(sizes)])
        if small[d] != large[target]:
            sizes.append(small[d])
    return OpShardingRuleAttr.of([operand], [[[d] for d in range(len(large))]], sizes)


def dot(op: Operation) -> OpShardingRuleAttr | None:
    """Batching dims first, then what is left of both sides; contracted dims are summed: `([i, k], [k, j])->([i, j])`."""
    numbers = op.properties["dot_dimension_numbers"]
    assert isinstance(numbers, DotAttr)
    batching = (numbers.lhs_batching_dimensions, numbers.rhs_batching_dimensions)
    contracted = (numbers.lhs_contracting_dimensions, numbers.rhs_contracting_dimensions)
    sizes: list[int] = []
    sides: list[dict[int, int]] = [{}, {}]
    shapes = [_shape(v.type) for v in op.operands]

    def index(*places: tuple[int, int]) -> None:
        for side, d in places:
            sides[side][d] = len(sizes)
        sizes.append(shapes[places[0][0]][places[0][1]])

    for left, right in zip(*batching, strict=True):
        index((0, left.value.data), (1, right.value.data))
    summed = {(side, d.value.data) for side in (0, 1) for d in contracted[side]}
    for side in (0, 1):
        for d in range(len(shapes[side])):
            if d not in sides[side] and (side, d) not in summed:
                index((side, d))
    count = len(sizes)
    for left, right in zip(*contracted, strict=True):
        index((0, left.value.data), (1, right.value.data))
    operands = [[[side[d]] for d in range(len(side))] for side in sides]
    return OpShardingRuleAttr.of(operands, [[[f] for f in range(count)]], sizes, reduction=range(count, len(sizes)))


def reduce(op: Operation) -> OpShardingRuleAttr | None:
    """Dims that are combined are summed indices: `([i, k], [])->([i]) reduction={k}`."""
    summed = _ints(op, "dimensions")
    shape = _shape(op.operands[0].type)
    count = len(op.results)
    dims = [[d] for d in range(len(shape))]
    kept = [[d] for d in range(len(shape)) if d not in summed]
    return OpShardingRuleAttr.of([dims] * count + [[]] * count, [kept] * count, shape, reduction=summed)


def _ints(op: Operation, name: str) -> tuple[int, ...]:
    attr = op.properties[name]
    assert isinstance(attr, DenseArrayBase)
    return tuple(int(i) for i in attr.get_values())


def _shape(type_: Attribute) -> tuple[int, ...]:
    return type_.get_shape() if isinstance(type_, TensorType) else ()


OVERRIDES: Mapping[str, RuleBuilder] = {
    "partir.tag": pointwise,
    "sdy.sharding_constraint": pointwise,
    "stablehlo.slice": aligned_slice,
    "stablehlo.pad": aligned_pad,
    "stablehlo.concatenate": equal_concatenate,
    "stablehlo.dynamic_slice": picked_slice,
    "stablehlo.dynamic_update_slice": placed_update,
    "chlo.top_k": top_k,
    "stablehlo.convolution": grouped_convolution,
    "stablehlo.custom_call": eigendecomposition,
}
"""By op name: rules that go before Shardy's where they apply."""


STANDARD: Mapping[str, RuleBuilder] = {
    "stablehlo.broadcast_in_dim": broadcast,
    "stablehlo.dot_general": dot,
    "stablehlo.reduce": reduce,
    "stablehlo.transpose": transpose,
}
"""By op name: what Shardy would say, for hand-written text of the most common ops."""


def standard_rule(op: Operation) -> OpShardingRuleAttr | None:
    """The rule of an op that did not come through Shardy; None where nobody knows one."""
    found = rule_for(op)
    if found is not None:
        return found
    if is_pointwise(op):
        return pointwise(op)
    standard = STANDARD.get(op.name)
    return standard(op) if standard is not None else None


def rule_for(op: Operation) -> OpShardingRuleAttr | None:
    """Our rule for an op; None leaves Shardy's, if it has one."""
    override = OVERRIDES.get(op.name)
    if override is not None:
        return override(op)
    if op.name.startswith("chlo.") and op.results and math.prod(_shape(op.results[0].type)) > 0:
        return pointwise(op)
    return None
