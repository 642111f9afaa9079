"""The device-local program: collectives say what they do to shapes."""

import re

import pytest
from xdsl.dialects import test
from xdsl.dialects.builtin import TensorType, f32, i32

from partir.dialect.core import TileAttr
from partir.dialect.spmd import (
    AllGatherOp,
    AllReduceOp,
    AllSliceOp,
    AllToAllOp,
    AxesAttr,
    CollectivePermuteOp,
    CoordinateOp,
    ReduceScatterOp,
)
from partir.dialect.text import attribute_text, parse, parse_attribute, to_generic, to_text
from partir.errors import IRError

pytestmark = pytest.mark.core

DATA = AxesAttr.of([("data", 4)])
BOTH = AxesAttr.of([("data", 4), ("model", 2)])
ROWS, COLUMNS = TileAttr.of(0), TileAttr.of(1)

LINES = [
    '%y = spmd.all_reduce add %x ["data"=4] : tensor<8x16xf32>',
    '%y = spmd.all_reduce max %x ["data"=4, "model"=2] {spmd.cause = "why"} : tensor<8x16xf32>',
    '%y = spmd.all_gather %x tile<0> ["data"=4] : tensor<8x16xf32> -> tensor<32x16xf32>',
    '%y = spmd.all_gather %x tile<1, 2> ["data"=4] : tensor<8x16xf32> -> tensor<8x64xf32>',
    '%y = spmd.reduce_scatter mul %x tile<0> ["data"=4] : tensor<8x16xf32> -> tensor<2x16xf32>',
    '%y = spmd.all_slice %x tile<1, 2> ["data"=4] : tensor<8x16xf32> -> tensor<8x4xf32>',
    '%y = spmd.all_to_all %x tile<0> -> tile<1> ["data"=4] : tensor<8x16xf32> -> tensor<32x4xf32>',
    '%y = spmd.all_to_all %x tile<1> -> tile<1, 4> ["data"=4] : tensor<8x16xf32> -> tensor<8x16xf32>',
    '%y = spmd.collective_permute %x [0->1, 1->0] ["data"=4] : tensor<8x16xf32>',
    '%y = spmd.collective_permute %x [] ["data"=4] : tensor<8x16xf32>',
    '%y = spmd.coordinate ["data"=4, "model"=2] : tensor<i32>',
]


def function(line: str) -> str:
    return f"func.func @f(%x: tensor<8x16xf32>) {{\n{line}\nfunc.return\n}}"


@pytest.mark.parametrize("line", LINES)
def test_text_goes_round(line: str) -> None:
    module = parse(function(line))

    assert line in to_text(module)
    assert to_text(parse(to_generic(module))) == to_text(module)


@pytest.mark.parametrize(
    ("line", "message"),
    [
        (LINES[2].replace("32x16", "16x16"), 'spmd.all_gather of tensor<8x16xf32> over <"data"=4> is tensor<32x16xf32>'),
        (LINES[3].replace("tile<1, 2>", "tile<1, 3>"), "dim 1 of tensor<8x16xf32> does not divide by 3 blocks"),
        (LINES[4].replace('"data"=4', '"data"=3'), "dim 0 of tensor<8x16xf32> does not divide by 3 parts"),
        (LINES[5].replace("tile<1, 2>", "tile<2>"), "tile of dim 2 of tensor<8x16xf32>, which has rank 2"),
        (LINES[6].replace("-> tile<1>", "-> tile<0>"), "source and target are both tile<0>: nothing to exchange"),
        (LINES[0].replace("add", "and"), "kind and needs integers or booleans, not f32"),
        (LINES[0].replace("add", "mean"), "Expected `add`"),
        (LINES[0].replace('"data"=4', ""), "a collective needs at least one mesh axis"),
        (LINES[1].replace("model", "data"), "mesh axes ['data', 'data'] are not all different"),
        (LINES[0].replace("=4", "=0"), 'mesh axis "data" has size 0'),
        (LINES[8].replace("1->0", "0->2"), "source devices [0, 0] are not all different"),
        (LINES[8].replace("1->0", "2->1"), "target devices [1, 1] are not all different"),
        (LINES[8].replace("1->0", "1->4"), 'target device 4 is outside <"data"=4>, which has 4 devices'),
        (LINES[10].replace("i32", "i64"), "i64"),
    ],
)
def test_what_is_wrong_is_refused(line: str, message: str) -> None:
    with pytest.raises(IRError, match=re.escape(message)):
        parse(function(line))


def test_constructors_compute_result_types() -> None:
    x = test.TestOp(result_types=[TensorType(f32, [8, 16])]).results[0]
    ops = {
        "tensor<8x16xf32>": [AllReduceOp(x, "add", BOTH), CollectivePermuteOp(x, DATA, [(0, 1)])],
        "tensor<32x16xf32>": [AllGatherOp(x, ROWS, DATA)],
        "tensor<2x16xf32>": [AllSliceOp(x, ROWS, DATA), ReduceScatterOp(x, "add", ROWS, DATA)],
        "tensor<32x4xf32>": [AllToAllOp(x, ROWS, COLUMNS, DATA)],
        "tensor<i32>": [CoordinateOp(BOTH)],
    }

    for type, makers in ops.items():
        for op in makers:
            op.verify()
            assert str(op.result.type) == type


def test_an_explicit_result_type_is_taken() -> None:
    x = test.TestOp(result_types=[TensorType(i32, [8])]).results[0]

    op = AllGatherOp(x, ROWS, DATA, TensorType(i32, [32]))

    op.verify()


def test_pairs_read_as_pairs() -> None:
    x = test.TestOp(result_types=[TensorType(f32, [8])]).results[0]

    assert CollectivePermuteOp(x, DATA, [(0, 1), (3, 0)]).source_target_pairs == ((0, 1), (3, 0))


def test_axes() -> None:
    assert (BOTH.names, BOTH.sizes, BOTH.total) == (("data", "model"), (4, 2), 8)
    assert AxesAttr.of([("data", 4)]) is DATA
    assert attribute_text(BOTH) == '#spmd.axes<"data"=4, "model"=2>'
    assert parse_attribute('#spmd.axes<"data"=4, "model"=2>') == BOTH
