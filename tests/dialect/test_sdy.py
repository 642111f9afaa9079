"""Shardy's dialect: what MLIR prints we read, what we print MLIR reads, and both print the same."""

import re

import jax
import pytest
from jax.extend.mlir import ir
from jax.interpreters import mlir

from partir.dialect.sdy import (
    AxisRef,
    DimSharding,
    ManualAxesAttr,
    MeshAttr,
    MeshOp,
    MeshShape,
    OpShardingRuleAttr,
    ShardingConstraintOp,
    TensorShardingAttr,
    TensorShardingPerValueAttr,
    factor_symbol,
)
from partir.dialect.text import attribute_text, parse, parse_attribute, to_generic, to_text
from partir.errors import IRError
from partir.mesh import Mesh

pytestmark = pytest.mark.jax

MANY = [*"ijklmnopqrstuvwxyz", *(f"z_{number}" for number in range(1, 13))]

ATTRIBUTES = [
    '#sdy.mesh<["data"=4, "model"=2]>',
    "#sdy.mesh<[]>",
    '#sdy.mesh<["a"=2], device_ids=[1, 0]>',
    "#sdy.mesh<[], device_ids=[3]>",
    '#sdy.sharding<@mesh, [{"data", ?}, {"model":(1)2}], replicated={"a"}, unreduced={"b":(1)2, "c"}>',
    '#sdy.sharding<@mesh, [{"data", ?}p0, {"model":(1)2}p1, {}, {?}p3]>',
    "#sdy.sharding<@mesh, []>",
    "#sdy.sharding<@empty_mesh, [{}]>",
    '#sdy.sharding<mesh<["a"=2]>, [{"a"}]>',
    "#sdy.sharding<mesh<[], device_ids=[3]>, []>",
    '#sdy.sharding<@"my mesh", [{"a\\22q"}]>',
    '#sdy.sharding<@mesh, [{"a":(1)2, "b", "a":(2)2}, {}]>',
    "#sdy.sharding_per_value<[]>",
    "#sdy.sharding_per_value<[<@mesh, [{}]>, <@m, []>]>",
    "#sdy<manual_axes{}>",
    '#sdy<manual_axes{"a", "b"}>',
    "#sdy.op_sharding_rule<([i, k], [k, j])->([i, j]) {i=8, j=16, k=32} reduction={k}>",
    "#sdy.op_sharding_rule<([i, kl], [k, j])->([i, j]) {i=8, j=8, k=2, l=3} reduction={k, l} need_replication={i} "
    "permutation={j} blocked_propagation={i}, custom>",
    "#sdy.op_sharding_rule<([i, j])->([ij], []) {i=8, j=8}>",
    "#sdy.op_sharding_rule<([], [])->([])>",
    f"#sdy.op_sharding_rule<([{', '.join(MANY[:18])}, {MANY[-1]}])->([zz_1z_12]) "
    f"{{{', '.join(f'{symbol}=2' for symbol in MANY)}}}>",
    '#sdy<list_of_axis_ref_lists[{"a"}, {}]>',
    '#sdy<axis_ref_list{"a", "b":(1)2}>',
    '#sdy<all_to_all_param_list[{"a"}: 0->1]>',
]

MODULE = """
sdy.mesh @mesh = <["data"=4, "model"=2]>
func.func public @main(%a: tensor<8x8xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"data"}, {}]>}) -> tensor<8x8xf32> {
  %0 = sdy.sharding_constraint %a <@mesh, [{"data", ?}, {}]> {x = 1 : i64} : tensor<8x8xf32>
  %1 = sdy.manual_computation(%0) in_shardings=[<@mesh, [{"data"}, {}]>] out_shardings=[<@mesh, [{"data"}, {}]>] manual_axes={"data"} (%b: tensor<2x8xf32>) {
    sdy.return %b : tensor<2x8xf32>
  } {y} : (tensor<8x8xf32>) -> tensor<8x8xf32>
  sdy.manual_computation() in_shardings=[] out_shardings=[] manual_axes={} () {
    sdy.return
  } : () -> ()
  %2 = stablehlo.add %1, %1 {sdy.sharding_rule = #sdy.op_sharding_rule<([i, j], [i, j])->([i, j]) {i=8, j=8}>} : tensor<8x8xf32>
  func.return %2 : tensor<8x8xf32>
}
"""  # noqa: E501


@pytest.fixture
def shardy():
    with mlir.make_ir_context() as context:
        yield context


@pytest.mark.parametrize("text", ATTRIBUTES)
def test_mlir_and_we_print_the_same(text: str, shardy: ir.Context) -> None:
    printed = str(ir.Attribute.parse(text))

    assert printed == text
    assert attribute_text(parse_attribute(text)) == text


def test_unreduced_kinds(shardy: ir.Context) -> None:
    text = '#sdy.sharding<@mesh, [], unreduced=max{"b"}>'

    assert attribute_text(parse_attribute(text)) == text
    if jax.__version_info__ >= (0, 12):  # older Shardy only knows sums
        assert str(ir.Attribute.parse(text)) == text


def test_modules_go_both_ways(shardy: ir.Context) -> None:
    from_mlir = ir.Module.parse(MODULE)

    ours = parse(from_mlir.operation.get_asm(print_generic_op_form=True))
    pretty = parse(str(from_mlir))

    for module in (ours, pretty, parse(to_text(ours))):
        assert str(ir.Module.parse(to_generic(module))) == str(from_mlir)
    for line in MODULE.splitlines():
        if "sdy.sharding_constraint" in line or "sdy.manual_computation" in line or "sdy.mesh @" in line:
            assert re.sub(r"%\w+", "%", line.strip()) in re.sub(r"%\w+", "%", to_text(ours))


def test_later_ops_are_read() -> None:
    text = """
    %x = "stablehlo.iota"() <{iota_dimension = 0 : i64}> : () -> tensor<8xf32>
    %1 = "sdy.reshard"(%x) <{sharding = #sdy.sharding<@mesh, [{}]>}> : (tensor<8xf32>) -> tensor<8xf32>
    %2 = "sdy.all_gather"(%1) <{gathering_axes = #sdy<list_of_axis_ref_lists[{"a"}]>, out_sharding = #sdy.sharding<@mesh, [{}]>}>
      : (tensor<8xf32>) -> tensor<8xf32>
    %3 = "sdy.propagation_barrier"(%2) <{allowed_direction = 0 : i32}> : (tensor<8xf32>) -> tensor<8xf32>
    """  # noqa: E501

    module = parse(text)

    assert to_text(parse(to_text(module))) == to_text(module)


def test_accessors() -> None:
    rule = parse_attribute("#sdy.op_sharding_rule<([i, kl], [k, j])->([i, j]) {i=8, j=16, k=2, l=3} reduction={k, l}>")
    sharding = parse_attribute('#sdy.sharding<@mesh, [{"a", ?}, {"b":(1)2}p1], replicated={"c"}, unreduced={"d"}>')

    assert rule.operands == (((0,), (2, 3)), ((2,), (1,)))
    assert rule.results == (((0,), (1,)),)
    assert (rule.sizes, rule.reduction, rule.is_custom) == ((8, 16, 2, 3), (2, 3), False)
    assert (rule.need_replication, rule.permutation, rule.blocked_propagation) == ((), (), ())
    assert sharding.mesh == "mesh"
    assert sharding.dims == (
        DimSharding((AxisRef("a"),), is_closed=False),
        DimSharding((AxisRef("b", 1, 2),), priority=1),
    )
    assert sharding.dims[1].axes[0].is_part
    assert sharding.dims[0].names == ("a",)
    assert (sharding.replicated, sharding.unreduced) == ((AxisRef("c"),), (AxisRef("d"),))
    assert parse_attribute("#sdy.sharding_per_value<[<@m, []>]>").shardings == (TensorShardingAttr.of("m", []),)
    assert parse_attribute('#sdy<manual_axes{"a"}>') == ManualAxesAttr(("a",))


def test_builders() -> None:
    mesh = MeshAttr.of(Mesh(data=4, model=2))
    rule = OpShardingRuleAttr.of([[[0], [2]], [[2], [1]]], [[[0], [1]]], [8, 16, 32], reduction=[2])
    sharding = TensorShardingAttr.of("mesh", [["data"], []], replicated=["model"])
    x = parse("%x = stablehlo.iota dim = 0 : tensor<8xf32>").body.block.first_op.results[0]

    assert attribute_text(mesh) == ATTRIBUTES[0]
    assert mesh.mesh == Mesh(data=4, model=2)
    assert attribute_text(rule) == ATTRIBUTES[16]
    assert rule is OpShardingRuleAttr.of([[[0], [2]], [[2], [1]]], [[[0], [1]]], [8, 16, 32], reduction=[2])
    assert attribute_text(sharding) == '#sdy.sharding<@mesh, [{"data"}, {}], replicated={"model"}>'
    assert attribute_text(TensorShardingAttr.of(MeshShape((("a", 2),)), [[]], is_closed=False)) == (
        '#sdy.sharding<mesh<["a"=2]>, [{?}]>'
    )
    assert to_text(MeshOp("mesh", mesh)) == 'sdy.mesh @mesh = <["data"=4, "model"=2]>'
    assert to_text(ShardingConstraintOp(x, sharding)).endswith('<@mesh, [{"data"}, {}], replicated={"model"}> : tensor<8xf32>')
    assert TensorShardingPerValueAttr((sharding,)).shardings == (sharding,)


def test_factor_symbols() -> None:
    assert [factor_symbol(factor) for factor in range(30)] == MANY


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("#sdy.op_sharding_rule<([a])->([a]) {i=2}>", "expected factor symbols i to z, z_1, z_2 ..., not 'a'"),
        ("#sdy.op_sharding_rule<([z_0])->([i]) {i=2}>", "not 'z_0'"),
        ("#sdy.op_sharding_rule<([i, k])->([i]) {i=2, k=2}>", "expected the size of j, not k"),
        ("#sdy.op_sharding_rule<([i, j])->([i]) {i=2}>", "factor j is not one of the 1 with a size"),
        ('#sdy.sharding<@mesh, [{"a"}x1]>', "expected a priority like 'p0', not 'x1'"),
        ('#sdy.sharding<@mesh, [{"a"}p01]>', "expected a priority like 'p0', not 'p01'"),
        ('#sdy.sharding<@mesh, [{?, "a"}]>', "'?' comes once, after the axes"),
        ('#sdy.sharding<@mesh, [{"a"}], sharded={"a"}>', "Expected one of 'replicated', 'unreduced'"),
        ('#sdy.mesh<["a"=2, "a"=2]>', "mesh axes ['a', 'a'] are not all different"),
    ],
)
def test_what_is_wrong_is_refused(text: str, message: str) -> None:
    with pytest.raises(IRError, match=re.escape(message)):
        parse_attribute(text)


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        (MODULE.replace('in_shardings=[<@mesh, [{"data"}, {}]>]', "in_shardings=[]"), "1 operands, 0 shardings"),
        (MODULE.replace('out_shardings=[<@mesh, [{"data"}, {}]>]', "out_shardings=[]"), "1 results, 0 shardings"),
        (MODULE.replace("    sdy.return %b", "    func.return %b"), "func.return"),
    ],
)
def test_wrong_modules_are_refused(wrong: str, message: str) -> None:
    with pytest.raises(IRError, match=message):
        parse(wrong)
