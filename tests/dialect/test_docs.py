"""docs/dialect.md is made from the docstrings, and the examples in them are IR."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

from partir.dialect import core, sdy, spmd, stablehlo_regions
from partir.dialect.text import parse, to_text

pytestmark = pytest.mark.core

ROOT = Path(__file__).parents[2]
OPS = [
    *core.PARTIR.operations,
    *spmd.SPMD.operations,
    *(op for op in sdy.SDY.operations if op not in sdy.LATER),
    stablehlo_regions.ReduceOp,
    stablehlo_regions.WhileOp,
]

SCALARS = "%zero: tensor<i32>, %one: tensor<i32>, %five: tensor<i32>"
ARGUMENTS = {
    "partir.barrier": "%a: tensor<8xf32>, %b: tensor<f32>",
    "sdy.manual_computation": "%x: tensor<8xf32>",
    "sdy.mesh": "",
    "stablehlo.reduce": "%x: tensor<8x16xf32>, %zero: tensor<f32>",
    "stablehlo.while": f"%x: tensor<8xf32>, {SCALARS}",
}
INSIDE = {
    "partir.yield": '%y, %z = partir.loop "a"=2 [tile<0>, any] (%i) : tensor<4x16xf32>, tensor<f32> {{\n{}\n}}',
    "partir.slice": 'partir.loop "a"=4 [] (%i) {{\n{}\npartir.yield\n}}',
    "partir.coordinate": 'partir.loop "a"=4 [] (%i) {{\n{}\npartir.yield\n}}',
    "sdy.return": "sdy.manual_computation() in_shardings=[] out_shardings=[<@m, []>] manual_axes={{}} () {{\n"
    '%a = "stablehlo.iota"() <{{iota_dimension = 0 : i64}}> : () -> tensor<2xf32>\n{}\n}} : () -> tensor<2xf32>',
}


def example_of(op: type) -> str:
    found = re.search(r"```mlir\n(.*?)```", op.__doc__ or "", re.DOTALL)
    assert found, f"{op.name} has no example"
    return found[1]


@pytest.mark.parametrize("op", OPS, ids=lambda op: op.name)
def test_examples_are_ir(op: type) -> None:
    example = example_of(op)
    first_type = re.search(r" : (tensor<[^>]*>)", example)
    arguments = ARGUMENTS.get(op.name, f"%x: {first_type[1] if first_type else ''}")
    if op.name in ("partir.yield", "sdy.return"):
        arguments = "%a: tensor<2x16xf32>, %b: tensor<f32>" if op.name == "partir.yield" else ""
    body = INSIDE.get(op.name, "{}").format(example)
    function = f"func.func @f({arguments}) {{\n{body}\nfunc.return\n}}"

    text = to_text(parse(body if op.name == "sdy.mesh" else function))

    assert op.name in text


def test_the_page_is_fresh() -> None:
    check = subprocess.run(
        [sys.executable, ROOT / "docs" / "make_dialect.py", "--check"], capture_output=True, text=True, cwd=ROOT
    )

    assert check.returncode == 0, check.stderr
