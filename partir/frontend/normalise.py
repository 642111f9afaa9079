"""What JAX's own passes leave: ops on broadcast scalars, and reductions that start from another value than the neutral one.

An op on broadcast scalars is done on the scalars first. `x / norm` and the like broadcast a scalar to the shape of every
parameter; whatever is computed on such broadcasts alone is the same for all parameters of that shape, and CSE makes it one
value, which would tie the dims of unrelated parameters.

before   %a = broadcast %s ; %b = broadcast %t ; %c = multiply %a, %b
after    %m = multiply %s, %t ; %c = broadcast %m

A reduction that starts from a value that counts cannot be done in pieces, each of which would count it; so it is combined
with the result. (XLA, too, counts it once per piece where it reorders such a reduction and an all_to_all.)

before   %r = reduce(%x init: %three) across dimensions = [0] applies add
after    %p = reduce(%x init: %zero) across dimensions = [0] applies add ; %b = broadcast %three ; %r = add %b, %p
"""

from __future__ import annotations

from xdsl.dialects.builtin import BytesAttr, DenseArrayBase, DenseIntOrFPElementsAttr, TensorType, i64
from xdsl.ir import Attribute, Operation, OpResult, SSAValue

from partir.dialect.core import OriginAttr
from partir.dialect.kinds import is_pointwise
from partir.dialect.reduction import REDUCTIONS, combiner, is_neutral, neutral_literal
from partir.dialect.sdy import OpShardingRuleAttr
from partir.dialect.stablehlo import OPS

RULE = OpShardingRuleAttr.KEY
NO_DIMS = DenseArrayBase.from_list(i64, [])


def normalised(op: Operation) -> list[Operation]:
    """The ops to add in place of `op`; the last one has its results."""
    return init_last(op) if op.name == "stablehlo.reduce" else scalars_first(op)


def init_last(op: Operation) -> list[Operation]:
    """A reduction from its neutral value, and the value it starts from combined with the result."""
    combine = combiner(op)
    if len(op.operands) != 2 or combine is None or is_neutral(op.operands[1], REDUCTIONS[combine.name]):
        return [op]
    result = op.results[0].type
    assert isinstance(result, TensorType)
    literal = neutral_literal(result.element_type, REDUCTIONS[combine.name])
    if literal is None:
        return [op]
    start = op.operands[1]
    zero = OPS["stablehlo.constant"].create(result_types=[literal.get_type()], properties={"value": literal})
    op.operands[1] = zero.results[0]
    shape = result.get_shape()
    dims = [[d] for d in range(len(shape))]
    origin = {OriginAttr.KEY: op.attributes[OriginAttr.KEY]} if OriginAttr.KEY in op.attributes else {}
    spread = OPS["stablehlo.broadcast_in_dim"].create(
        operands=[start],
        result_types=[result],
        properties={"broadcast_dimensions": NO_DIMS},
        attributes={**origin, RULE: OpShardingRuleAttr.of([[]], [dims], shape)},
    )
    last = type(combine).create(
        operands=[spread.results[0], op.results[0]],
        result_types=[result],
        properties=dict(combine.properties),
        attributes={**origin, RULE: OpShardingRuleAttr.of([dims, dims], [dims], shape)},
    )
    return [zero, op, spread, last]


def scalars_first(op: Operation) -> list[Operation]:
    """The ops to add in place of `op` (whose last one has its result): itself, or the same on scalars and a broadcast."""
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
    spread = OPS["stablehlo.broadcast_in_dim"].create(
        operands=[small.results[0]],
        result_types=[result],
        properties={"broadcast_dimensions": NO_DIMS},
        attributes={**attributes, RULE: OpShardingRuleAttr.of([[]], [[[d] for d in range(len(shape))]], shape)},
    )
    return [*made, small, spread]


def _scalar_of(value: SSAValue) -> SSAValue | DenseIntOrFPElementsAttr | None:
    """The scalar a value is everywhere: a scalar value, or a scalar literal; None when it is not known to be one."""
    if isinstance(value.type, TensorType) and not value.type.get_shape():
        return value
    if not isinstance(value, OpResult):
        return None
    op = value.op
    if op.name == "stablehlo.broadcast_in_dim":
        inner = op.operands[0]
        return inner if isinstance(inner.type, TensorType) and not inner.type.get_shape() else None
    literal = op.properties.get("value") if op.name == "stablehlo.constant" else None
    if isinstance(literal, DenseIntOrFPElementsAttr) and literal.is_splat():
        width = literal.get_element_type().compile_time_size
        return DenseIntOrFPElementsAttr(TensorType(literal.get_element_type(), ()), BytesAttr(literal.data.data[:width]))
    return None
