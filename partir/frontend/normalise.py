"""Four rewrites on import, of patterns that JAX's own passes leave and that would make shardings worse, or wrong.

1. A pointwise op on broadcast scalars is done on the scalars, and its result is broadcast. `x / norm` and the like broadcast a
scalar to the shape of every parameter. CSE merges whatever is computed from such broadcasts alone into one value for all
parameters of one shape, and propagation through that value would force one sharding on unrelated parameters.

before   %a = broadcast %s ; %b = broadcast %t ; %c = multiply %a, %b
after    %m = multiply %s, %t ; %c = broadcast %m

2. A reduction with an initial value other than the neutral one starts from the neutral one; the initial value is combined with
the result. Otherwise each shard would count the initial value once. (XLA makes that mistake where it reorders such a reduction
and an all_to_all.)

before   %r = reduce(%x init: %three) across dimensions = [0] applies add
after    %p = reduce(%x init: %zero) across dimensions = [0] applies add ; %b = broadcast %three ; %r = add %b, %p

3. A loop that carries constants (or values made of constants alone) without changing them reads them directly instead. They can
then be made again in the body in any sharding that a use wants. JAX's scan carries everything that its body reads from outside.

before   %r:2 = while (%c = %cosines, %x = %start) do { ... return %c, %y }
after    %r = while (%x = %start) do { ... return %y }                            (%cosines stands for %c and %r#0)

4. A contraction whose only use is a transpose that swaps the dims of its two operands is done with the operands exchanged, so
that a weight's gradient has the dim order of the weight. JAX computes the gradient transposed. A reduce_scatter between the
contraction and the transpose would fix the transposed order in memory, and XLA for TPU would copy every weight and optimizer
state to match it.

before   %g = dot_general %dy, %x, contracting_dims = [0] x [0] ; %t = transpose %g, dims = [1, 0]
after    %t = dot_general %x, %dy, contracting_dims = [0] x [0]
"""

from __future__ import annotations

from collections.abc import Sequence

from xdsl.dialects.builtin import ArrayAttr, BytesAttr, DenseArrayBase, DenseIntOrFPElementsAttr, TensorType, i64
from xdsl.ir import Attribute, Operation, OpResult, SSAValue
from xdsl_jax.dialects.stablehlo.attributes import DotAlgorithmAttr, DotAttr

from partir.dialect.constants import is_splat
from partir.dialect.core import OriginAttr
from partir.dialect.kinds import LAYOUT, is_pointwise
from partir.dialect.reduction import COMBINER_KINDS, combiner, is_neutral, neutral_literal
from partir.dialect.sdy import OpShardingRuleAttr
from partir.dialect.stablehlo import OPS
from partir.frontend.rules import dot as dot_rule

RULE = OpShardingRuleAttr.KEY
NO_DIMS = DenseArrayBase.from_list(i64, [])


def normalised(op: Operation) -> tuple[list[Operation], Sequence[SSAValue]]:
    """Rewrites 1-3: the ops to add in place of `op`, and the values that replace its results."""
    if op.name == "stablehlo.while":
        return constants_out(op)
    made = init_last(op) if op.name == "stablehlo.reduce" else scalars_first(op)
    return made, made[-1].results


def constants_out(op: Operation) -> tuple[list[Operation], Sequence[SSAValue]]:
    """Rewrite 3: a `while` without the constants it carries. One that carries nothing else is left as it is."""
    bodies = [region.blocks[0] for region in op.regions]
    last = bodies[1].last_op
    assert last is not None
    carried = [
        k for k, value in enumerate(op.operands) if last.operands[k] is not bodies[1].args[k] or not is_of_constants(value)
    ]
    if len(carried) in (0, len(op.operands)):
        return [op], op.results
    last.operands = [last.operands[k] for k in carried]
    for body in bodies:
        for k in sorted(set(range(len(op.operands))) - set(carried), reverse=True):
            body.args[k].replace_all_uses_with(op.operands[k])
            body.erase_arg(body.args[k])
    new = type(op).create(
        operands=[op.operands[k] for k in carried],
        result_types=[op.results[k].type for k in carried],
        properties=dict(op.properties),
        attributes=dict(op.attributes),
        regions=[op.detach_region(region) for region in list(op.regions)],
    )
    results: list[SSAValue] = list(op.operands)
    for k, result in zip(carried, new.results, strict=True):
        results[k] = result
    op.erase()
    return [new], results


def is_of_constants(value: SSAValue) -> bool:
    """Whether a value is a constant or iota, or is computed from those alone by pointwise ops and layout ops."""
    seen: set[SSAValue] = set()
    stack = [value]
    while stack:
        current = stack.pop()
        if current in seen:
            continue
        seen.add(current)
        if not isinstance(current, OpResult):
            return False
        op = current.op
        if op.name not in ("stablehlo.constant", "stablehlo.iota") and not (is_pointwise(op) or op.name in LAYOUT):
            return False
        stack.extend(op.operands)
    return True


def init_last(op: Operation) -> list[Operation]:
    """Rewrite 2: a reduction from its neutral value, whose result is combined with the initial value."""
    combine = combiner(op)
    if len(op.operands) != 2 or combine is None or is_neutral(op.operands[1], COMBINER_KINDS[combine.name]):
        return [op]
    result = op.results[0].type
    assert isinstance(result, TensorType)
    literal = neutral_literal(TensorType(result.element_type, ()), COMBINER_KINDS[combine.name])
    if literal is None:
        return [op]
    start = op.operands[1]
    zero = OPS["stablehlo.constant"].create(result_types=[literal.get_type()], properties={"value": literal})
    op.operands[1] = zero.results[0]
    shape = result.get_shape()
    dims = [[d] for d in range(len(shape))]
    origin = {OriginAttr.KEY: op.attributes[OriginAttr.KEY]} if OriginAttr.KEY in op.attributes else {}
    broadcast = OPS["stablehlo.broadcast_in_dim"].create(
        operands=[start],
        result_types=[result],
        properties={"broadcast_dimensions": NO_DIMS},
        attributes={**origin, RULE: OpShardingRuleAttr.of([[]], [dims], shape)},
    )
    last = type(combine).create(
        operands=[broadcast.results[0], op.results[0]],
        result_types=[result],
        properties=dict(combine.properties),
        attributes={**origin, RULE: OpShardingRuleAttr.of([dims, dims], [dims], shape)},
    )
    return [zero, op, broadcast, last]


def scalars_first(op: Operation) -> list[Operation]:
    """Rewrite 1: `op` alone, or the same op on scalars and a broadcast of its result. The last op returned replaces `op`."""
    if len(op.results) != 1 or not op.operands or op.regions or not is_pointwise(op):
        return [op]
    result = op.results[0].type
    if not isinstance(result, TensorType) or not result.get_shape():
        return [op]
    sources = [_scalar_of(value) for value in op.operands]
    if any(source is None for source in sources) or all(isinstance(source, DenseIntOrFPElementsAttr) for source in sources):
        return [op]
    made: list[Operation] = []
    operands: list[SSAValue] = []
    for source in sources:
        if isinstance(source, DenseIntOrFPElementsAttr):
            constant = OPS["stablehlo.constant"].create(result_types=[source.get_type()], properties={"value": source})
            made.append(constant)
            source = constant.results[0]
        assert source is not None
        operands.append(source)
    scalar = TensorType(result.element_type, ())
    attributes: dict[str, Attribute] = dict(op.attributes)
    attributes[RULE] = OpShardingRuleAttr.of([[]] * len(operands), [[]], [])
    small = type(op).create(operands=operands, result_types=[scalar], properties=dict(op.properties), attributes=attributes)
    shape = result.get_shape()
    broadcast = OPS["stablehlo.broadcast_in_dim"].create(
        operands=[small.results[0]],
        result_types=[result],
        properties={"broadcast_dimensions": NO_DIMS},
        attributes={**attributes, RULE: OpShardingRuleAttr.of([[]], [[[d] for d in range(len(shape))]], shape)},
    )
    return [*made, small, broadcast]


def _scalar_of(value: SSAValue) -> SSAValue | DenseIntOrFPElementsAttr | None:
    """The scalar that all elements of a value equal, as a value or as a literal; None if there is none or it is not known."""
    if isinstance(value.type, TensorType) and not value.type.get_shape():
        return value
    if not isinstance(value, OpResult):
        return None
    op = value.op
    if op.name == "stablehlo.broadcast_in_dim":
        inner = op.operands[0]
        return inner if isinstance(inner.type, TensorType) and not inner.type.get_shape() else None
    literal = op.properties.get("value") if op.name == "stablehlo.constant" else None
    if isinstance(literal, DenseIntOrFPElementsAttr) and is_splat(literal):
        width = literal.get_element_type().compile_time_size
        return DenseIntOrFPElementsAttr(TensorType(literal.get_element_type(), ()), BytesAttr(literal.data.data[:width]))
    return None


def exchange(module: Operation) -> None:
    """Rewrite 4, on a whole module.

    Equal attributes are made one object, as the bridge does: rules are compared by identity, and repeated layers found by that.
    """
    made: dict[Attribute, Attribute] = {}
    for op in list(module.walk()):
        source = op.operands[0] if op.name == "stablehlo.transpose" else None
        if not isinstance(source, OpResult) or source.op.name != "stablehlo.dot_general" or not source.has_one_use():
            continue
        if _exchanges(source.op, op):
            _exchange(source.op, op, made)


def _exchanges(dot: Operation, transpose: Operation) -> bool:
    """Whether a transpose puts the right operand's dims of a contraction before the left's, and keeps the order of each."""
    numbers, permutation = dot.properties["dot_dimension_numbers"], transpose.properties["permutation"]
    assert isinstance(numbers, DotAttr)
    assert isinstance(permutation, DenseArrayBase)
    left, count = dot.operands[0].type, len(permutation)
    assert isinstance(left, TensorType)
    batch = len(numbers.lhs_batching_dimensions)
    ends = left.get_num_dims() - len(numbers.lhs_contracting_dimensions)
    return permutation.get_values() == (*range(batch), *range(ends, count), *range(batch, ends))


def _exchange(dot: Operation, transpose: Operation, made: dict[Attribute, Attribute]) -> None:
    properties = dict(dot.properties)
    numbers, precisions, algorithm = (properties.get(n) for n in ("dot_dimension_numbers", "precision_config", "algorithm"))
    assert isinstance(numbers, DotAttr)
    properties["dot_dimension_numbers"] = DotAttr(
        numbers.rhs_batching_dimensions,
        numbers.lhs_batching_dimensions,
        numbers.rhs_contracting_dimensions,
        numbers.lhs_contracting_dimensions,
    )
    if isinstance(precisions, ArrayAttr):
        properties["precision_config"] = ArrayAttr(precisions.data[::-1])
    if isinstance(algorithm, DotAlgorithmAttr):
        properties["algorithm"] = DotAlgorithmAttr(
            algorithm.rhs_precision_type,
            algorithm.lhs_precision_type,
            algorithm.accumulation_type,
            algorithm.rhs_component_count,
            algorithm.lhs_component_count,
            algorithm.num_primitive_operations,
            algorithm.allow_imprecise_accumulation,
        )
    new = type(dot).create(
        operands=dot.operands[::-1],
        result_types=[transpose.results[0].type],
        properties={name: made.setdefault(attr, attr) for name, attr in properties.items()},
        attributes={name: attr for name, attr in dot.attributes.items() if name != RULE},
    )
    rule = dot_rule(new)
    assert rule is not None
    new.attributes[RULE] = made.setdefault(rule, rule)
    block = dot.parent
    assert block is not None
    block.insert_op_before(new, dot)
    transpose.results[0].replace_all_uses_with(new.results[0])
    for old in (transpose, dot):
        old.detach()
        old.erase()
