"""The StableHLO ops that xdsl-jax lacks, one line each, and replacements for those that refuse what JAX emits.

Names and properties are those of the specification, https://openxla.org/stablehlo/spec.
"""

from __future__ import annotations

from xdsl.dialects.builtin import (
    ArrayAttr,
    DictionaryAttr,
    FlatSymbolRefAttrConstr,
    FloatAttr,
    StringAttr,
    UnitAttr,
)
from xdsl.irdl import IRDLOperation, base
from xdsl_jax.dialects.stablehlo import attributes
from xdsl_jax.dialects.stablehlo.attributes import ComparisonDirectionAttr, ComparisonTypeAttr, PrecisionAttr
from xdsl_jax.dialects.stablehlo.custom_directives import CustomCallTarget
from xdsl_jax.xdsl_extras.traits import Elementwise, SameOperandsAndResultShape

from partir.dialect.define import BOOL, BOOLS, ELEMENTS, I32, I64, I64S, LIST, Optional, define, elementwise
from partir.dialect.stablehlo_attributes import (
    ChannelHandleAttr,
    ConvDimensionNumbersAttr,
    FftTypeAttr,
    RngAlgorithmAttr,
    RngDistributionAttr,
    TransposeAttr,
    raw,
)

ReplicaGroupMeshAxesAttr = raw("stablehlo.replica_group_mesh_axes")
ResultAccuracyAttr = raw("stablehlo.result_accuracy")
BoundsAttr = raw("stablehlo.bounds")

STRING = base(StringAttr)
DICTIONARY = base(DictionaryAttr)
CHANNEL = base(ChannelHandleAttr)
CONV = base(ConvDimensionNumbersAttr)
FLOAT = base(FloatAttr)
GROUPS = ELEMENTS | base(ReplicaGroupMeshAxesAttr)
PRECISION = ArrayAttr.constr(base(PrecisionAttr))
UNIT = base(UnitAttr)

DynamicUpdateSliceOp = define(
    "stablehlo.dynamic_update_slice", "operand, update, start_indices* -> result",
    syntax="$operand `,` $update (`,` $start_indices^)? attr-dict `:` functional-type(operands, results)",
)  # fmt: skip
ReverseOp = elementwise("stablehlo.reverse", "operand", arguments="`,` `dims` `=` $dimensions", dimensions=I64S)
SortOp = define(
    "stablehlo.sort", "inputs* -> results_*", regions="comparator", dimension=Optional(I64), is_stable=Optional(BOOL)
)
CholeskyOp = define("stablehlo.cholesky", "a -> result", lower=Optional(BOOL))
TriangularSolveOp = define(
    "stablehlo.triangular_solve", "a, b -> result",
    left_side=BOOL, lower=BOOL, unit_diagonal=BOOL, transpose_a=base(TransposeAttr),
)  # fmt: skip
FftOp = define("stablehlo.fft", "operand -> result", fft_type=base(FftTypeAttr), fft_length=I64S)
ConvolutionOp = define(
    "stablehlo.convolution", "lhs, rhs -> result",
    window_strides=Optional(I64S), padding=Optional(ELEMENTS), lhs_dilation=Optional(I64S), rhs_dilation=Optional(I64S),
    window_reversal=Optional(BOOLS), dimension_numbers=CONV, feature_group_count=I64, batch_group_count=I64,
    precision_config=Optional(PRECISION),
)  # fmt: skip
ReduceWindowOp = define(
    "stablehlo.reduce_window", "inputs*, init_values* -> results_*", regions="body",
    window_dimensions=I64S, window_strides=Optional(I64S), base_dilations=Optional(I64S),
    window_dilations=Optional(I64S), padding=Optional(ELEMENTS),
)  # fmt: skip
SelectAndScatterOp = define(
    "stablehlo.select_and_scatter", "operand, source, init_value -> result", regions="select scatter",
    window_dimensions=Optional(I64S), window_strides=Optional(I64S), padding=Optional(ELEMENTS),
)  # fmt: skip
RngOp = define("stablehlo.rng", "a, b, shape -> result", effects=True, rng_distribution=base(RngDistributionAttr))
RngBitGeneratorOp = define(
    "stablehlo.rng_bit_generator", "initial_state -> output_state, output", rng_algorithm=base(RngAlgorithmAttr),
    syntax="$initial_state `,` `algorithm` `=` $rng_algorithm attr-dict `:` functional-type(operands, results)",
)  # fmt: skip

AllGatherOp = define(
    "stablehlo.all_gather", "operands_* -> results_*", effects=True,
    all_gather_dim=I64, replica_groups=GROUPS, channel_handle=Optional(CHANNEL), use_global_device_ids=Optional(UNIT),
)  # fmt: skip
AllReduceOp = define(
    "stablehlo.all_reduce", "operands_* -> results_*", regions="computation", effects=True,
    replica_groups=GROUPS, channel_handle=Optional(CHANNEL), use_global_device_ids=Optional(UNIT),
)  # fmt: skip
ReduceScatterOp = define(
    "stablehlo.reduce_scatter", "operand -> result", regions="computation", effects=True,
    scatter_dimension=I64, replica_groups=GROUPS, channel_handle=Optional(CHANNEL),
    use_global_device_ids=Optional(UNIT),
)  # fmt: skip
AllToAllOp = define(
    "stablehlo.all_to_all", "operands_* -> results_*", effects=True,
    split_dimension=I64, concat_dimension=I64, split_count=I64, replica_groups=GROUPS, channel_handle=Optional(CHANNEL),
)  # fmt: skip
CollectivePermuteOp = define(
    "stablehlo.collective_permute", "operand -> result", effects=True,
    source_target_pairs=ELEMENTS, channel_handle=Optional(CHANNEL),
)  # fmt: skip
CollectiveBroadcastOp = define(
    "stablehlo.collective_broadcast", "operands_* -> results_*", effects=True,
    replica_groups=GROUPS, channel_handle=Optional(CHANNEL), has_dynamic_root=Optional(BOOL | UNIT),
)  # fmt: skip
CollectiveReduceOp = define(
    "stablehlo.collective_reduce", "operands_* -> results_*", regions="computation", effects=True,
    replica_groups=GROUPS, channel_handle=Optional(CHANNEL), use_global_device_ids=Optional(UNIT),
    has_dynamic_root=Optional(BOOL | UNIT),
)  # fmt: skip
CrossReplicaSumOp = define("stablehlo.cross-replica-sum", "operand -> result", effects=True, replica_groups=ELEMENTS)
PartitionIdOp = define("stablehlo.partition_id", "-> result", syntax="attr-dict `:` type(results)")
ReplicaIdOp = define("stablehlo.replica_id", "-> result", syntax="attr-dict `:` type(results)")

InfeedOp = define("stablehlo.infeed", "token -> results_*", effects=True, infeed_config=Optional(STRING), layout=Optional(LIST))
OutfeedOp = define("stablehlo.outfeed", "inputs*, token -> result", effects=True, outfeed_config=Optional(STRING))
SendOp = define(
    "stablehlo.send", "inputs*, token -> result", effects=True,
    channel_handle=CHANNEL, is_host_transfer=Optional(BOOL), source_target_pairs=Optional(ELEMENTS),
)  # fmt: skip
RecvOp = define(
    "stablehlo.recv", "token -> results_*", effects=True,
    channel_handle=CHANNEL, is_host_transfer=Optional(BOOL), source_target_pairs=Optional(ELEMENTS),
)  # fmt: skip
CreateTokenOp = define("stablehlo.create_token", "-> output")
AsyncStartOp = define("stablehlo.async_start", "operands_* -> result", regions="body", effects=True)
AsyncDoneOp = define("stablehlo.async_done", "operand -> results_*", effects=True)
TupleOp = define("stablehlo.tuple", "val* -> result")
GetTupleElementOp = define("stablehlo.get_tuple_element", "operand -> result", index=I32)
CompositeOp = define(
    "stablehlo.composite", "inputs* -> results_*", regions="composite_regions*", effects=True,
    name=STRING, composite_attributes=Optional(DICTIONARY), decomposition=FlatSymbolRefAttrConstr,
    version=Optional(I32),
)  # fmt: skip

BatchNormTrainingOp = define(
    "stablehlo.batch_norm_training", "operand, scale, offset -> output, batch_mean, batch_var",
    epsilon=FLOAT, feature_index=I64,
)  # fmt: skip
BatchNormInferenceOp = define(
    "stablehlo.batch_norm_inference",
    "operand, scale, offset, mean, variance -> result",
    epsilon=FLOAT,
    feature_index=I64,
)
BatchNormGradOp = define(
    "stablehlo.batch_norm_grad", "operand, scale, mean, variance, grad_output -> grad_operand, grad_scale, grad_offset",
    epsilon=FLOAT, feature_index=I64,
)  # fmt: skip
BroadcastOp = define("stablehlo.broadcast", "operand -> result", broadcast_sizes=I64S)
DotOp = define("stablehlo.dot", "lhs, rhs -> result", precision_config=Optional(PRECISION))
EinsumOp = define("stablehlo.einsum", "lhs, rhs -> result", einsum_config=STRING)
UnaryEinsumOp = define("stablehlo.unary_einsum", "operand -> result", einsum_config=STRING)
TorchIndexSelectOp = define("stablehlo.torch_index_select", "operand, index -> result", dim=I64, batch_dims=I64)
UniformQuantizeOp = define("stablehlo.uniform_quantize", "operand -> result")
UniformDequantizeOp = define("stablehlo.uniform_dequantize", "operand -> result")

DynamicConvOp = define(
    "stablehlo.dynamic_conv", "lhs, rhs, padding -> result",
    window_strides=Optional(I64S), lhs_dilation=Optional(I64S), rhs_dilation=Optional(I64S),
    window_reversal=Optional(BOOLS), dimension_numbers=CONV, feature_group_count=I64, batch_group_count=I64,
    precision_config=Optional(PRECISION),
)  # fmt: skip
DynamicGatherOp = define(
    "stablehlo.dynamic_gather", "operand, start_indices, slice_sizes -> result",
    dimension_numbers=base(attributes.GatherDimensionNumbers), indices_are_sorted=Optional(BOOL),
)  # fmt: skip
DynamicIotaOp = define("stablehlo.dynamic_iota", "output_shape -> result", iota_dimension=I64)
DynamicPadOp = define(
    "stablehlo.dynamic_pad", "operand, padding_value, edge_padding_low, edge_padding_high, interior_padding -> result"
)
DynamicReshapeOp = define("stablehlo.dynamic_reshape", "operand, output_shape -> result")
RealDynamicSliceOp = define("stablehlo.real_dynamic_slice", "operand, start_indices, limit_indices, strides -> result")
GetDimensionSizeOp = define("stablehlo.get_dimension_size", "operand -> result", dimension=I64)
SetDimensionSizeOp = define("stablehlo.set_dimension_size", "operand, size -> result", dimension=I64)

# Below: ops that xdsl-jax has, but whose definition there refuses what JAX emits, or whose text it cannot parse again.

CompareOp = define(  # the property is called compare_type, not comparison_type
    "stablehlo.compare", "lhs, rhs -> result", traits=(SameOperandsAndResultShape(), Elementwise()),
    comparison_direction=base(ComparisonDirectionAttr), compare_type=Optional(base(ComparisonTypeAttr)),
    syntax="$comparison_direction `,` $lhs `,` $rhs (`,` $compare_type^)? "
    "attr-dict `:` functional-type(operands, results)",
)  # fmt: skip
PadOp = define(  # of any element type
    "stablehlo.pad", "operand, padding_value -> result",
    edge_padding_low=I64S, edge_padding_high=I64S, interior_padding=I64S,
    syntax="$operand `,` $padding_value `,` `low` `=` $edge_padding_low `,` `high` `=` $edge_padding_high `,` "
    "`interior` `=` $interior_padding attr-dict `:` functional-type(operands, results)",
)  # fmt: skip


def _accurate(name: str) -> type[IRDLOperation]:
    """A pointwise function with a `result_accuracy` (xdsl-jax has only its mode, JAX emits the full attribute)."""
    return elementwise(f"stablehlo.{name}", "operand", result_accuracy=Optional(base(ResultAccuracyAttr)))


CbrtOp = _accurate("cbrt")
CosineOp = _accurate("cosine")
ExponentialOp = _accurate("exponential")
ExponentialMinusOneOp = _accurate("exponential_minus_one")
LogOp = _accurate("log")
LogPlusOneOp = _accurate("log_plus_one")
LogisticOp = _accurate("logistic")
RsqrtOp = _accurate("rsqrt")
SineOp = _accurate("sine")
SqrtOp = _accurate("sqrt")
TanOp = _accurate("tan")
TanhOp = _accurate("tanh")
CustomCallOp = define(  # without results
    "stablehlo.custom_call", "inputs* -> result*", effects=True,
    call_target_name=STRING, has_side_effect=Optional(BOOL), backend_config=Optional(DICTIONARY | STRING),
    api_version=Optional(I32), called_computations=Optional(LIST), operand_layouts=Optional(LIST),
    result_layouts=Optional(LIST), output_operand_aliases=Optional(LIST), result_tilings=Optional(LIST),
    syntax="custom<CustomCallTarget>($call_target_name) `(` $inputs `)` "
    "attr-dict `:` functional-type(operands, results)",
    directives=(CustomCallTarget,),
)  # fmt: skip
