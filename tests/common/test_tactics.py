"""One suite for the family of tactics: every program under every schedule computes what one device computes."""

import functools
from typing import Any

import jax
import pytest
from equal import assert_close_to_largest, assert_same, mesh_of
from hlo import collectives_in
from jax.sharding import PartitionSpec as P
from programs import PROGRAMS
from schedules import SCHEDULES
from thinned import thinned

import partir
from partir import (
    DataParallel,
    EmbeddingParallel,
    Manual,
    Megatron,
    NoEffectError,
    Replicate,
    SequenceParallel,
    ZeRO,
    zoo,
)
from partir.runtime.interpret import interpret
from partir.zoo import Example

pytestmark = pytest.mark.jax

_SMALL = {"layers": 1, "d_model": 32, "heads": 4, "vocab": 64, "seq": 8, "batch": 8}

MODELS: dict[str, Example] = {
    "gpt": zoo.gpt(**_SMALL),
    "gpt_grouped": zoo.gpt(**_SMALL, kv_heads=2, optimizer="momentum"),
    "gpt_tied_flat_clipped": zoo.gpt(**_SMALL, tied=True, flatten=True, clip=0.1),
    "partir_t32": zoo.partir_t32(1, 32, 4, 64, 8, 8, optimizer="sgd"),
    "mlp": zoo.mlp((16, 32, 32, 8), batch=16),
    "mlp_clipped": zoo.mlp((16, 32, 8), batch=16, clip=0.1, optimizer="adamw"),
}
EXAMPLES = PROGRAMS | MODELS

_NO_PARAMETERS = frozenset(SCHEDULES) - {"batch"}
_NO_OPTIMIZER = frozenset({"zero1", "zero2", "both+zero2"})
_NO_TABLE = frozenset({"embedding", "batch+embedding"})
_NO_SEQUENCE = frozenset({"megatron+sequence", "both+sequence"})
_NO_HIDDEN = frozenset({"megatron", "both", "both+zero2", "both+zero3", "both+zero3 once"}) | _NO_SEQUENCE

WITHOUT_EFFECT: dict[str, frozenset[str]] = {
    **dict.fromkeys(
        ["matmul", "recurrence", "cross_entropy_grad", "closure_and_nested_jit", "convolution_grad"],
        _NO_PARAMETERS,
    ),
    **dict.fromkeys(["attention", "attention_grad", "grouped_attention"], _NO_OPTIMIZER | _NO_TABLE),
    **dict.fromkeys(["few_kv_heads", "three_heads"], _NO_OPTIMIZER | _NO_TABLE),
    **dict.fromkeys(["merged_rows", "layer_norm_grad", "scanned_layers"], _NO_HIDDEN | _NO_TABLE),
    **dict.fromkeys(["mlp_grad", "clipped_sgd_step"], _NO_TABLE),
    **dict.fromkeys(["mlp", "mlp_clipped"], _NO_TABLE | _NO_SEQUENCE),
}
"""Where some tactic of a schedule has nothing to do, and says so: no argument is state, nothing is looked up, ..."""

APPLICABLE = [
    (name, schedule) for name in EXAMPLES for schedule in SCHEDULES if schedule not in WITHOUT_EFFECT.get(name, frozenset())
]


@functools.cache
def arguments_and_expected(name: str, dtype: str = "float64") -> tuple[Any, Any]:
    """Real arguments of a program, and what one device computes of them."""
    example = EXAMPLES[name]
    args = example.concrete(dtype=dtype)
    return args, jax.jit(example.fun)(*args)


@functools.cache
def traced(name: str, mesh: str, dtype: str = "float64") -> partir.Traced:
    example = EXAMPLES[name]
    args, _ = arguments_and_expected(name, dtype)
    return partir.jit(example.fun, mesh=mesh_of(mesh), donate_argnums=example.donate_argnums).trace(*args)


def assert_schedule_computes_the_same(name: str, schedule: Any, mesh: str = "4x2") -> None:
    """The compiled program has the collectives of the plan and no other, and gives the numbers of one device."""
    args, expected = arguments_and_expected(name)
    part = traced(name, mesh).partition(schedule)
    compiled = part.lower().compile()
    assert collectives_in(compiled.as_text()) == part.collectives
    assert_same(compiled(*jax.device_put(args, part.in_shardings)), expected)


@pytest.mark.parametrize(("name", "schedule"), thinned(APPLICABLE, most=100))
def test_program_under_schedule_equals_one_device(name, schedule, x64):
    assert_schedule_computes_the_same(name, SCHEDULES[schedule])


INTERPRETED = [case for case in APPLICABLE if case[0] in {*PROGRAMS, "gpt_grouped", "mlp"}]


@pytest.mark.parametrize(("name", "schedule"), thinned(reversed(INTERPRETED), most=70))
def test_core_of_program_under_schedule_equals_one_device(name, schedule, x64):
    args, expected = arguments_and_expected(name)
    tr = traced(name, "4x2")

    results = interpret(tr.partition(SCHEDULES[schedule]).core, [*jax.tree.leaves(args), *tr.program.constants])

    assert_same(jax.tree.unflatten(tr.program.trees.results, results), expected)


@pytest.mark.parametrize("name", WITHOUT_EFFECT)
def test_tactic_with_nothing_to_do_says_so(name, x64):
    for schedule in WITHOUT_EFFECT[name]:
        with pytest.raises(NoEffectError, match=r"^\w+\(.*\) (finds no|changes nothing)"):
            traced(name, "4x2").partition(SCHEDULES[schedule])


_DATA, _MODEL = DataParallel("data"), Megatron("model")

OTHER_MESHES = [
    # Axes of every size: eight devices on one axis, more devices than key-value heads, three axes.
    ("gpt", "8", [_DATA, ZeRO("data", stage=3)]),
    ("mlp", "8", [_DATA, ZeRO("data", stage=2)]),
    ("mlp_grad", "8", [Megatron("data"), SequenceParallel("data")]),
    ("tied_embedding_step", "8", [_DATA, EmbeddingParallel("data")]),
    ("gpt_grouped", "2x4", [_DATA, _MODEL, ZeRO("data", stage=3)]),
    ("few_kv_heads", "2x4", [_MODEL]),
    ("few_kv_heads", "8", [Megatron("data")]),
    ("three_heads", "2x4", [_MODEL, _DATA]),
    ("gpt_tied_flat_clipped", "2x4", [_DATA, _MODEL, EmbeddingParallel("model")]),
    ("partir_t32", "2x2x2", [_DATA, _MODEL, ZeRO("stage", stage=3)]),
    ("attention_grad", "2x2x2", [_DATA, _MODEL, SequenceParallel("stage")]),
    # Several axes on one dim, in both orders; the same tactics in another order.
    ("gpt", "2x2x2", [_DATA, DataParallel("stage"), _MODEL]),
    ("mlp", "2x2x2", [DataParallel("stage"), _DATA, Megatron("model"), Megatron("stage")]),
    ("mlp_grad", "2x4", [Megatron("model"), Megatron("data")]),
    ("clipped_sgd_step", "4x2", [DataParallel("model"), DataParallel("data")]),
    ("tied_embedding_step", "4x2", [ZeRO("data", stage=3), DataParallel("data")]),
    ("mlp_clipped", "4x2", [ZeRO("data", stage=3), _MODEL, _DATA]),
    ("scanned_layers", "2x4", [DataParallel("data", inputs="x")]),
    ("convolution_grad", "2x2x2", [DataParallel("data", inputs="images"), DataParallel("stage", inputs="images")]),
]


@pytest.mark.parametrize(("name", "mesh", "schedule"), OTHER_MESHES)
def test_other_meshes_and_orders_equal_one_device(name, mesh, schedule, x64):
    assert_schedule_computes_the_same(name, schedule, mesh)


OWN_DECISIONS = [
    ("mlp_grad", [Manual({"params/w1": 1, "x": 0}, axis="model")]),
    ("mlp_grad", [Manual({"params/w1": P("data", "model"), "y": P("model")})]),
    ("mlp_grad", [Manual({"params/w*": P(None, ("model", "data"))})]),
    ("mlp_grad", [Manual(({"w1": P("data"), "w2": None}, P(None, "model")))]),
    ("matmul", [Manual({"x": P(("data", "model")), "w": P(None, None)})]),
    ("matmul", [Manual({"x": P(None, "data"), "w": P("data", "model")})]),
    ("attention_grad", [Manual({"params/query": 1, "params/output": 1}, axis="model"), _DATA]),
    ("gpt", [_DATA, Manual({"params/**/up/w": P(None, "model"), "params/embed": P("data")})]),
    ("gpt", [Replicate("params/logits", "data"), _DATA, ZeRO("data", stage=3)]),
    ("gpt", [_DATA, Megatron("model", scope="mlp-block"), ZeRO("data", stage=3, params="params/**/w")]),
    ("mlp", [Replicate("params/layer_1/*", "data"), Replicate("batch/targets", "data"), _DATA, ZeRO("data", stage=3)]),
    ("clipped_sgd_step", [_DATA, Replicate("params/w2", "model"), _MODEL]),
    ("tied_embedding_step", [Manual({"params/embed": 0}, axis="model"), _DATA]),
    ("cross_entropy_grad", [Manual({"logits": P("data", "model")})]),
    ("recurrence", [Manual({"w": P("data", "model")})]),
    ("layer_norm_grad", [Manual({"x": P("model", "data")})]),
]


@pytest.mark.parametrize(("name", "schedule"), OWN_DECISIONS)
def test_own_decisions_equal_one_device(name, schedule, x64):
    assert_schedule_computes_the_same(name, schedule)


@pytest.mark.parametrize("schedule", ["both", "zero2", "both+zero3", "both+sequence", "batch+embedding"])
def test_loss_and_gradients_in_float32(schedule):
    """The first step of momentum leaves the gradients in its state, whole."""
    args, (_, opt_state, loss) = arguments_and_expected("gpt_grouped", "float32")

    _, actual_state, actual_loss = traced("gpt_grouped", "4x2", "float32").partition(SCHEDULES[schedule])(*args)

    assert_close_to_largest(actual_loss, loss, 1e-5)
    assert_close_to_largest(actual_state, opt_state, 1e-5)
