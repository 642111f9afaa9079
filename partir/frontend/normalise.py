"""What JAX's own passes leave: an op on broadcast scalars is done on the scalars first.

`x / norm` and the like broadcast a scalar to the shape of every parameter; whatever is computed on such broadcasts alone is
the same for all parameters of that shape, and CSE makes it one value, which would tie the dims of unrelated parameters.

before   %a = broadcast %s ; %b = broadcast %t ; %c = multiply %a, %b
after    %m = multiply %s, %t ; %c = broadcast %m
"""

from __future__ import annotations

from xdsl.dialects.builtin import BytesAttr, DenseArrayBase, DenseIntOrFPElementsAttr, TensorType, i64
from xdsl.ir import Attribute, Operation, OpResult, SSAValue

from partir.dialect.kinds import is_pointwise
from partir.dialect.sdy import OpShardingRuleAttr
from partir.dialect.stablehlo import OPS

RULE = OpShardingRuleAttr.KEY
NO_DIMS = DenseArrayBase.from_list(i64, [])


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
