"""The identities of collectives hold on text, keep what they compute, and find nothing on what the planner wrote."""

import pytest

import partir
from partir.cli.inputs import schedule_of
from partir.dialect.text import parse, to_text
from partir.errors import IRError
from partir.lowering.simplify import simplify
from partir.lowering.verify import count_collectives, verify_spmd

HEAD = 'sdy.mesh @mesh = <["data"=4, "model"=2]>\n'

CASES = {
    "reduce then slice": (
        "%0: tensor<8x16xf32>",
        """
        %1 = spmd.all_reduce add %0 ["data"=4] : tensor<8x16xf32>
        %2 = spmd.all_slice %1 tile<0> ["data"=4] : tensor<8x16xf32> -> tensor<2x16xf32>
        """,
        "tensor<2x16xf32>",
        {"reduce_scatter": 1},
    ),
    "reduce over two axes then slice over one": (
        "%0: tensor<8x16xf32>",
        """
        %1 = spmd.all_reduce add %0 ["data"=4, "model"=2] : tensor<8x16xf32>
        %2 = spmd.all_slice %1 tile<0> ["data"=4] : tensor<8x16xf32> -> tensor<2x16xf32>
        """,
        "tensor<2x16xf32>",
        {"all_reduce": 1, "reduce_scatter": 1},
    ),
    "gather then the same slice": (
        "%0: tensor<2x16xf32>",
        """
        %1 = spmd.all_gather %0 tile<0> ["data"=4] : tensor<2x16xf32> -> tensor<8x16xf32>
        %2 = spmd.all_slice %1 tile<0> ["data"=4] : tensor<8x16xf32> -> tensor<2x16xf32>
        """,
        "tensor<2x16xf32>",
        {},
    ),
    "gather then another slice": (
        "%0: tensor<2x16xf32>",
        """
        %1 = spmd.all_gather %0 tile<0> ["data"=4] : tensor<2x16xf32> -> tensor<8x16xf32>
        %2 = spmd.all_slice %1 tile<1> ["data"=4] : tensor<8x16xf32> -> tensor<8x4xf32>
        """,
        "tensor<8x4xf32>",
        {"all_to_all": 1},
    ),
    "two gathers of one dim": (
        "%0: tensor<1x16xf32>",
        """
        %1 = spmd.all_gather %0 tile<0> ["model"=2] : tensor<1x16xf32> -> tensor<2x16xf32>
        %2 = spmd.all_gather %1 tile<0> ["data"=4] : tensor<2x16xf32> -> tensor<8x16xf32>
        """,
        "tensor<8x16xf32>",
        {"all_gather": 1},
    ),
    "two all_reduces": (
        "%0: tensor<8x16xf32>",
        """
        %1 = spmd.all_reduce add %0 ["model"=2] : tensor<8x16xf32>
        %2 = spmd.all_reduce add %1 ["data"=4] : tensor<8x16xf32>
        """,
        "tensor<8x16xf32>",
        {"all_reduce": 1},
    ),
}


@pytest.mark.core
@pytest.mark.parametrize("name", CASES)
def test_identity(name: str) -> None:
    argument, body, result, expected = CASES[name]
    module = parse(f"{HEAD}func.func @main({argument}) -> {result} {{{body} func.return %2 : {result}\n}}")

    changed = simplify(module)

    assert changed
    verify_spmd(module)
    assert count_collectives(module) == expected


@pytest.mark.core
def test_a_value_that_others_read_keeps_its_all_reduce() -> None:
    text = f"""{HEAD}func.func @main(%0: tensor<8xf32>) -> (tensor<2xf32>, tensor<8xf32>) {{
      %1 = spmd.all_reduce add %0 ["data"=4] : tensor<8xf32>
      %2 = spmd.all_slice %1 tile<0> ["data"=4] : tensor<8xf32> -> tensor<2xf32>
      func.return %2, %1 : tensor<2xf32>, tensor<8xf32>
    }}"""
    module = parse(text)

    assert not simplify(module)


@pytest.mark.core
def test_an_axis_of_another_size_is_refused() -> None:
    module = parse(
        f"""{HEAD}func.func @main(%0: tensor<8xf32>) -> tensor<8xf32> {{
          %1 = spmd.all_reduce add %0 ["data"=8] : tensor<8xf32>
          func.return %1 : tensor<8xf32>
        }}"""
    )

    with pytest.raises(IRError, match='all_reduce over "data"=8'):
        verify_spmd(module)


@pytest.mark.jax
@pytest.mark.parametrize(
    "schedule",
    [
        "DataParallel('data')",
        "DataParallel('data'), Megatron('model'), ZeRO('data', stage=3)",
        "DataParallel('data'), ZeRO('data', stage=2)",
        "Megatron('model'), SequenceParallel('model')",
        "SequenceParallel('model')",
        "DataParallel('data'), EmbeddingParallel('model')",
    ],
)
def test_the_planner_leaves_nothing_to_simplify(schedule: str) -> None:
    example = partir.zoo.gpt(layers=1, d_model=32, heads=4, vocab=64, seq=8, batch=8, clip=1.0)
    step = partir.jit(example.fun, mesh=partir.Mesh(data=4, model=2), donate_argnums=example.donate_argnums)
    part = step.trace(*example.args).partition(schedule_of(schedule))
    before = to_text(part.spmd)

    changed = simplify(part.spmd)

    verify_spmd(part.spmd)
    assert not changed
    assert to_text(part.spmd) == before
    assert count_collectives(part.spmd) == part.collectives
