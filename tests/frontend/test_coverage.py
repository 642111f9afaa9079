"""Every op kind JAX emits is in docs/ops.md, and what the table says of it is so: ops alone, cut, run in pieces."""

import re
from pathlib import Path

import pytest
from op_coverage import Kind, imported, kinds_of, note
from pieces import cuts, factors
from surface import MODULES, SURFACE, missing
from xdsl.ir import Operation

from partir.frontend.trace import trace
from partir.zoo import MODELS

pytestmark = [pytest.mark.jax, pytest.mark.filterwarnings("ignore")]

OPS_PAGE = Path(__file__).parents[2] / "docs" / "ops.md"
IN_TABLE = set(re.findall(r"`([^`\n]+)`", OPS_PAGE.read_text()))

PARTS = {"lax": ["lax", "lax.linalg"], "numpy": ["numpy"]}
PARTS |= {"others": [m for m in MODULES if m not in ("lax", "lax.linalg", "numpy") and not m.startswith("scipy.stats")]}
PARTS |= {"statistics": [m for m in MODULES if m.startswith("scipy.stats")]}

TABLE: dict[str, Kind] = {}
"""What all parts together found, so that an entry is run once."""


def test_no_public_function_of_jax_is_missing():
    assert missing() == []


@pytest.mark.slow
@pytest.mark.parametrize("part", PARTS)
def test_functions_of_jax(part: str, x64: None):
    named = {name: call for name, call in SURFACE.items() if name.rsplit(".", 1)[0] in PARTS[part]}

    for name, program in imported(iter(named.items())):
        note(TABLE, part, name, program, checks=1)

    assert set(TABLE) <= IN_TABLE
    assert [line for kind in TABLE.values() for line in kind.wrong] == []


@pytest.mark.parametrize("name", MODELS)
def test_models_of_the_zoo(name: str):
    example = MODELS[name]()

    assert kinds_of(trace(example.fun, example.args, {})) <= IN_TABLE


def op_of(name: str, kind: str) -> Operation:
    """The first op of a kind in the program of a function."""
    (_, program), *_ = imported(iter([(name, SURFACE[name])]))
    return next(op for op in program.module.walk() if op.name == kind)


def test_factors_say_what_they_owe():
    said = {str(factor): factor.owes for factor in factors(op_of("numpy.einsum", "stablehlo.dot_general")).values()}

    assert said == {"lhs -> result": "nothing", "rhs -> result": "nothing", "lhs + rhs -> .": "all_reduce(add)"}


def test_a_wrong_rule_is_found():
    """A rule that calls a sorted dim free is told from a right one by running it."""
    from partir.dialect.sdy import OpShardingRuleAttr

    op = op_of("numpy.sort", "stablehlo.sort")
    dims = [[0], [1]]
    op.attributes[OpShardingRuleAttr.KEY] = OpShardingRuleAttr.of([dims], [dims], [8, 8])

    assert sorted((cut.factor, cut.wrong) for cut in cuts(op)) == [(0, ""), (1, "result 0 differs")]
