"""Core IR: what it means for a loop to be well formed, and that text goes round."""

import re

import pytest
from xdsl.dialects import test
from xdsl.dialects.builtin import TensorType, f32, i1
from xdsl.ir import Block, Region
from xdsl.utils.exceptions import VerifyException

from partir.dialect.core import (
    INDEX,
    ActionAttr,
    ActionsAttr,
    AnyAttr,
    BarrierOp,
    CoordinateOp,
    Kind,
    KindAttr,
    LoopOp,
    OriginAttr,
    Phase,
    ReduceAttr,
    SliceOp,
    TagOp,
    TileAttr,
    YieldOp,
)
from partir.dialect.text import attribute_text, parse, parse_attribute, to_generic, to_text
from partir.errors import IRError

pytestmark = pytest.mark.core


def function(body: str, arguments: str = "%x: tensor<8x16xf32>") -> str:
    return f"func.func @f({arguments}) {{\n{body}\nfunc.return\n}}"


LOOP = """
%y, %z, %w = partir.loop "data"=4 [tile<0>, reduce<add>, any] (%i) : tensor<8x16xf32>, tensor<2x16xf32>, tensor<i32> {
  %xs = partir.slice %x[%i] tile<0> : tensor<8x16xf32> -> tensor<2x16xf32>
  %c = partir.coordinate %i : tensor<i32>
  partir.yield %xs, %xs, %c : tensor<2x16xf32>, tensor<2x16xf32>, tensor<i32>
}
"""


@pytest.mark.parametrize(
    "body",
    [
        LOOP,
        LOOP.replace("i32> {", 'i32> attributes {partir.origin = #partir.origin<"a/b", recomputed, "m.py:7">} {'),
        'partir.loop "m"=2 [] (%j) {\npartir.yield\n}',
        'partir.loop "m"=2 [] (%j) {\npartir.loop "n"=2 [] (%k) {\npartir.yield\n}\npartir.yield\n}',
        '%t = partir.tag "the \\22residual\\22" %x {note} : tensor<8x16xf32>',
        "%a, %b = partir.barrier %x, %x {note = 1 : i64} : tensor<8x16xf32>, tensor<8x16xf32>",
        "partir.barrier",
    ],
)
def test_text_goes_round(body: str) -> None:
    module = parse(function(body))

    text = to_text(module)

    assert to_text(parse(text)) == text
    assert to_text(parse(to_generic(module))) == text
    assert parse(text).is_structurally_equivalent(module)


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ('partir.loop "data"=0 [] (%j) {\npartir.yield\n}', 'loop over "data" of size 0'),
        (LOOP.replace('"data"=4', '"data"=0'), "a tile with 0 parts"),
        (LOOP.replace("[tile<0>, reduce<add>, any]", "[tile<0>]"), "3 results, 1 entries in results_as and 3 yielded"),
        (LOOP.replace("[tile<0>,", "[tile<1>,"), "result 0 is tensor<8x16xf32>, but 4 x tensor<2x16xf32> as tile<1> make"),
        (LOOP.replace("[tile<0>,", "[any,"), "4 x tensor<2x16xf32> as any make tensor<2x16xf32>"),
        (LOOP.replace("[tile<0>,", "[tile<2>,"), "tile of dim 2 of tensor<2x16xf32>, which has rank 2"),
        (LOOP.replace("[tile<0>,", "[tile<0, 3>,"), "dim 0 of tensor<2x16xf32> does not divide by 3 blocks"),
        (LOOP.replace("reduce<add>", "reduce<or>"), "kind or needs integers or booleans, not f32"),
        (LOOP.replace("%xs = partir.slice %x[%i] tile<0>", "%xs = partir.slice %x[%i] tile<1>"), "is tensor<8x4xf32>, not"),
        (LOOP.replace("(%i)", "(%k)").replace("%c = partir.coordinate %i", "%c = partir.coordinate %k"), "index of a slice"),
        ('partir.loop "data"=4 [] (%j) {' + LOOP + "partir.yield\n}", 'loop over "data" inside another loop over "data"'),
        ('partir.loop "data"=4 [] (%i) { %c = partir.coordinate %i : tensor<i32> }', "not a terminator"),
        (
            '"partir.loop"() <{axis = "a", size = 2 : i64, results_as = []}> ({\n^b0(%i: i32):\n"partir.yield"() : () -> ()'
            "\n}) : () -> ()",
            "exactly one argument, of type index",
        ),
        ('"partir.loop"() <{axis = "a", size = 2 : i64, results_as = [1 : i64]}> ({}) : () -> ()', "results_as"),
        ('"partir.barrier"(%x) : (tensor<8x16xf32>) -> tensor<8xf32>', "the types of its operands"),
        ('"partir.tag"(%x) <{label = "a"}> : (tensor<8x16xf32>) -> tensor<8xf32>', "passes its value on unchanged"),
    ],
)
def test_what_is_wrong_is_refused(wrong: str, message: str) -> None:
    with pytest.raises(IRError, match=re.escape(message)):
        parse(function(wrong, "%x: tensor<8x16xf32>, %i: index" if "(%k)" in wrong else "%x: tensor<8x16xf32>"))


def test_uneven_slices_are_refused_with_the_numbers() -> None:
    wrong = function(LOOP.replace("8x16", "6x16"), "%x: tensor<6x16xf32>")

    with pytest.raises(IRError, match=re.escape("dim 0 of tensor<6x16xf32> does not divide by 4 parts")):
        parse(wrong)


def test_loops_compute_their_result_types() -> None:
    x = test.TestOp(result_types=[TensorType(f32, [8, 16])]).results[0]
    block = Block(arg_types=[INDEX])
    part = SliceOp(x, block.args[0], TileAttr.of(1), size=4)
    number = CoordinateOp(block.args[0])
    block.add_ops([part, number, YieldOp(part.result, part.result, number.result)])

    loop = LoopOp("model", 4, [TileAttr.of(1), ReduceAttr.of("add"), AnyAttr()], Region(block))

    loop.verify()
    assert [str(type) for type in loop.result_types] == ["tensor<8x16xf32>", "tensor<8x4xf32>", "tensor<i32>"]
    assert (loop.index, loop.trip_count) == (block.args[0], 4)
    assert SliceOp(x, loop.index, TileAttr.of(0)).result.type == TensorType(f32, [2, 16])


def test_a_detached_slice_needs_a_size() -> None:
    x = test.TestOp(result_types=[TensorType(f32, [8])]).results[0]

    with pytest.raises(VerifyException, match="needs its result type, or the number of parts"):
        SliceOp(x, Block(arg_types=[INDEX]).args[0], TileAttr.of(0))


def test_identities_keep_types() -> None:
    x = test.TestOp(result_types=[TensorType(f32, [8])]).results[0]

    assert TagOp("residual", x).result.type == x.type
    assert [result.type for result in BarrierOp(x, x).results] == [x.type, x.type]


@pytest.mark.parametrize(
    ("attribute", "text"),
    [
        (TileAttr.of(0), "#partir.tile<0>"),
        (TileAttr.of(2, 4), "#partir.tile<2, 4>"),
        (ReduceAttr.of(Kind.MAX), "#partir.reduce<max>"),
        (AnyAttr(), "#partir.any"),
        (KindAttr.of("and"), "#partir<kind and>"),
        (
            ActionAttr.of("tile", {"value": 'a/"b"', "dim": -1, "axis": "x"}),
            '#partir.action<tile value="a/\\22b\\22" dim=-1 axis="x">',
        ),
        (ActionAttr.of("none", {}), "#partir.action<none>"),
        (ActionsAttr.of([]), "#partir.actions<>"),
        (
            ActionsAttr.of([ActionAttr.of("cut", {"value": "a", "dim": 1}), ActionAttr.of("gather_once", {"value": "b"})]),
            '#partir.actions<\n  cut value="a" dim=1,\n  gather_once value="b"\n>',
        ),
        (OriginAttr.of('a/"b"', Phase.BACKWARD, "gpt.py:81"), '#partir.origin<"a/\\22b\\22", backward, "gpt.py:81">'),
    ],
)
def test_attributes_print_and_parse(attribute: object, text: str) -> None:
    assert attribute_text(attribute) == text
    assert parse_attribute(text) == attribute


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("#partir.tile<-1>", "tile of dim -1, which is negative"),
        ("#partir.tile<0, 0>", "tile with outer 0, which must be 1 or more"),
        ("#partir.reduce<mean>", "Expected `add`, `mul`, `max`, `min`, `and`, or `or`"),
        ('#partir.action<tile value="a" value="b">', "value twice in one action"),
        ("#partir.action<tile value=x>", "Expected integer literal"),
        ('#partir.action<tile value "x">', "Expected '='"),
        ("#partir.actions<tile, 3>", "identifier expected"),
        ('#partir.origin<"a", sideways, "b">', "Expected `forward`, `backward`, or `recomputed`"),
    ],
)
def test_attributes_refuse(text: str, message: str) -> None:
    with pytest.raises(IRError, match=re.escape(message)):
        parse_attribute(text)


def test_a_module_carries_actions() -> None:
    actions = '{partir.actions = #partir.actions<tile value="x" dim=0 axis="a">}'
    module = parse(f"builtin.module @step attributes {actions} {{ func.func @f() {{ func.return }} }}")

    text = to_text(module)

    assert text.startswith(
        'builtin.module @step attributes {partir.actions = #partir.actions<\n  tile value="x" dim=0 axis="a"\n>} {\n  func.func'
    )
    assert to_text(parse(text)) == to_text(parse(to_generic(module))) == text
    actions = module.attributes[ActionsAttr.KEY]
    assert isinstance(actions, ActionsAttr)
    assert [(action.kind.data, action.fields) for action in actions.actions] == [
        ("tile", {"value": "x", "dim": 0, "axis": "a"})
    ]


def test_equal_attributes_are_one_object() -> None:
    assert TileAttr.of(1, 2) is TileAttr.of(1, 2)
    assert OriginAttr.of("a", "forward", "b") is OriginAttr.of("a", "forward", "b")
    assert (TileAttr.of(1, 2).position, TileAttr.of(1, 2).outer_size) == (1, 2)


def test_cut_and_joined_are_inverse() -> None:
    whole = TensorType(f32, [24, 3])

    for outer in (1, 2, 3):
        tile = TileAttr.of(0, outer)
        assert tile.cut(whole, 4) == TensorType(f32, [6, 3])
        assert tile.joined(tile.cut(whole, 4), 4) == whole
    with pytest.raises(VerifyException, match=r"dim 0 of .* does not divide by 4 parts in 5 blocks"):
        TileAttr.of(0, 5).cut(whole, 4)
    with pytest.raises(VerifyException, match="only a tensor can be tiled, not i1"):
        TileAttr.of(0).cut(i1, 2)
