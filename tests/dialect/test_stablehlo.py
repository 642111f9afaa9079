"""StableHLO and CHLO: every op the bindings know is here with the same properties, and the short syntax reads back."""

import importlib
import inspect
import re

import pytest

from partir.dialect.chlo import CHLO
from partir.dialect.sdy import SDY
from partir.dialect.stablehlo import OPS
from partir.dialect.stablehlo_attributes import ChannelHandleAttr, ConvDimensions
from partir.dialect.text import attribute_text, context, parse, parse_attribute, to_generic, to_text
from partir.errors import IRError

UNSUPPORTED = re.compile(r"chlo\.broadcast_")
"""CHLO's implicitly broadcasting ops, which JAX does not emit."""


def ops_of_bindings(dialect: str) -> dict[str, set[str]]:
    """The ops MLIR's bindings have, each with the names of its properties."""
    source = inspect.getsource(importlib.import_module(f"jaxlib.mlir.dialects._{dialect}_ops_gen"))
    ops = {}
    for body in re.split(r"\nclass \w+\(_ods_ir\.OpView\):", source)[1:]:
        if name := re.search(r'OPERATION_NAME = "([^"]+)"', body):
            ops[name[1]] = set(re.findall(r'self\.operation\.attributes\["(\w+)"\]', body))
    return ops


@pytest.mark.jax
@pytest.mark.parametrize("dialect", ["stablehlo", "chlo", "sdy"])
def test_every_op_of_the_bindings_is_known(dialect: str) -> None:
    known = {"stablehlo": OPS, **{d.name: {op.name: op for op in d.operations} for d in (CHLO, SDY)}}[dialect]
    there = {name: properties for name, properties in ops_of_bindings(dialect).items() if not UNSUPPORTED.match(name)}

    missing = there.keys() - known.keys()
    wrong = {
        name: unknown
        for name, properties in there.items()
        if name in known and (unknown := properties - known[name].get_irdl_definition().properties.keys())
    }

    assert not missing
    assert not wrong


LINES = """
%r = stablehlo.reduce(%x init: %c) applies stablehlo.add across dimensions = [1] : (tensor<8x16xf32>, tensor<f32>) -> tensor<8xf32>
%r = stablehlo.reduce(%x init: %c) applies stablehlo.maximum across dimensions = [0, 1] {a = 1 : i64} : (tensor<8x16xf32>, tensor<f32>) -> tensor<f32>
%r = stablehlo.compare LT, %x, %x, FLOAT : (tensor<8x16xf32>, tensor<8x16xf32>) -> tensor<8x16xi1>
%r = stablehlo.compare EQ, %x, %x : (tensor<8x16xf32>, tensor<8x16xf32>) -> tensor<8x16xi1>
%r = stablehlo.pad %x, %c, low = [1, 0], high = [0, -2], interior = [0, 1] : (tensor<8x16xf32>, tensor<f32>) -> tensor<9x29xf32>
%r = stablehlo.exponential %x : tensor<8x16xf32>
%r = stablehlo.reverse %x, dims = [0, 1] : tensor<8x16xf32>
%r = chlo.erf %x : tensor<8x16xf32> -> tensor<8x16xf32>
%r = chlo.next_after %x, %x : tensor<8x16xf32>, tensor<8x16xf32> -> tensor<8x16xf32>
%r, %s = chlo.top_k(%x, k = 3) : tensor<8x16xf32> -> (tensor<8x3xf32>, tensor<8x3xi32>)
%r = stablehlo.partition_id : tensor<ui32>
%r = stablehlo.custom_call @target(%x) {api_version = 2 : i32} : (tensor<8x16xf32>) -> tensor<8xf32>
stablehlo.custom_call @target(%x) {has_side_effect = true} : (tensor<8x16xf32>) -> ()
""".strip().splitlines()  # noqa: E501


def function(line: str) -> str:
    return f"func.func @f(%x: tensor<8x16xf32>, %c: tensor<f32>, %i: tensor<i32>) {{\n{line}\nfunc.return\n}}"


@pytest.mark.core
@pytest.mark.parametrize("line", LINES)
def test_short_syntax_goes_round(line: str) -> None:
    module = parse(function(line))

    assert line in to_text(module)
    assert to_text(parse(to_generic(module))) == to_text(module)


REDUCE_TWO = """
%r, %s = stablehlo.reduce(%x init: %c), (%j init: %i) across dimensions = [1] : (tensor<8x16xf32>, tensor<8x16xi32>, tensor<f32>, tensor<i32>) -> (tensor<8xf32>, tensor<8xi32>) reducer(%a: tensor<f32>, %b: tensor<f32>) (%d: tensor<i32>, %e: tensor<i32>) {
  %m = stablehlo.add %a, %b : tensor<f32>
  %n = stablehlo.multiply %d, %e : tensor<i32>
  stablehlo.return %m, %n : tensor<f32>, tensor<i32>
}
"""  # noqa: E501

WHILE = """
%n, %y = stablehlo.while(%k = %i, %v = %x) : tensor<i32>, tensor<8x16xf32> attributes {a} cond {
  %p = stablehlo.compare LT, %k, %i, SIGNED : (tensor<i32>, tensor<i32>) -> tensor<i1>
  stablehlo.return %p : tensor<i1>
} do {
  %q = stablehlo.add %v, %x : tensor<8x16xf32>
  stablehlo.return %k, %q : tensor<i32>, tensor<8x16xf32>
}
"""


@pytest.mark.core
@pytest.mark.parametrize("body", ["%j = stablehlo.iota dim = 0 : tensor<8x16xi32>" + REDUCE_TWO, WHILE])
def test_regions_go_round(body: str) -> None:
    module = parse(function(body))

    text = to_text(module)

    for line in body.strip().splitlines():
        assert line.strip() in text
    assert to_text(parse(text)) == text
    assert to_text(parse(to_generic(module))) == text


@pytest.mark.core
@pytest.mark.parametrize(
    ("line", "message"),
    [
        (LINES[0].replace("stablehlo.add", "stablehlo.plus"), "'applies stablehlo.plus' needs a known op and one input"),
        (WHILE.replace("%k, %q : tensor<i32>, tensor<8x16xf32>", "%k : tensor<i32>"), "the values the body returns have not"),
        ('%r = "stablehlo.sort"(%x) : (tensor<8x16xf32>) -> tensor<8x16xf32>', "region"),
        ('%r = "stablehlo.fft"(%x) <{fft_length = array<i64: 16>}> : (tensor<8x16xf32>) -> tensor<8x9xf32>', "fft_type"),
    ],
)
def test_what_is_wrong_is_refused(line: str, message: str) -> None:
    with pytest.raises(IRError, match=re.escape(message)):
        parse(function(line))


@pytest.mark.core
def test_attributes_with_structure() -> None:
    conv = parse_attribute("#stablehlo.conv<[f, 0, 1, b]x[i, 0, 1, o]->[0, 1, b, f]>")
    channel = parse_attribute("#stablehlo.channel_handle<handle = 3, type = 1>")

    assert conv.data == ConvDimensions(3, 0, (1, 2), 0, 3, (1, 2), 2, 3, (0, 1))
    assert channel == ChannelHandleAttr.of(3)


@pytest.mark.core
@pytest.mark.parametrize(
    "text",
    [
        "#stablehlo.conv<[b, 1, 0, f]x[0, 1, i, o]->[b, 0, 1, f]>",
        "#stablehlo.conv<[b, f]x[i, o]->[b, f]>",
        "#stablehlo<fft_type IRFFT>",
        "#stablehlo<rng_algorithm PHILOX>",
        "#stablehlo<rng_distribution NORMAL>",
        "#stablehlo<transpose ADJOINT>",
        "#stablehlo.result_accuracy<ulps = 2, mode = #stablehlo.result_accuracy_mode<TOLERANCE>>",
        '#stablehlo.replica_group_mesh_axes<mesh = @m, axes = [#stablehlo.axis_ref<name = "a">]>',
        "#chlo<precision DEFAULT>",
        "#chlo.ragged_dot<lhs_ragged_dimensions = [0]>",
        "tensor<?x4xf32, #stablehlo.bounds<5, ?>>",
        "tensor<4x!quant.uniform<i8:f32, 2.000000e+00:15>>",
        "tuple<tensor<2xf32>, !stablehlo.token>",
        '#nobody.knows<this [one] {at = "all"}>',
        "!nobody.knows<it>",
    ],
)
def test_attributes_print_as_they_were(text: str) -> None:
    assert attribute_text(parse_attribute(text)) == text


@pytest.mark.core
def test_all_dialects_are_in_the_context() -> None:
    names = {dialect.name for dialect in context().loaded_dialects}

    assert names == {"builtin", "func", "stablehlo", "chlo", "quant", "sdy", "partir", "spmd"}
    assert context().get_optional_op("stablehlo.nonsense") is None
