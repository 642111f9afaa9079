"""What each schedule decides, as small tables whose diff is the review of a change: model x mesh x schedule."""

import functools

import pytest
from schedules import SCHEDULES
from specs_table import counts_of, table_of

import partir
from partir import zoo

pytestmark = pytest.mark.jax

MODELS = {
    "gpt": lambda: zoo.gpt(layers=1, d_model=32, heads=4, vocab=64, seq=8, batch=8),
    "mlp": lambda: zoo.mlp((16, 32, 32, 8), batch=16),
}
MESH = partir.Mesh(data=4, model=2)
TABLE = ["batch", "megatron", "both", "both+zero2", "both+zero3", "megatron+sequence"]
"""The schedules of the issue's table."""


@functools.cache
def traced(model: str) -> partir.Traced:
    example = MODELS[model]()
    return partir.jit(example.fun, mesh=MESH, donate_argnums=example.donate_argnums).trace(*example.args)


CASES = [(m, s) for m in MODELS for s in TABLE if (m, s) != ("mlp", "megatron+sequence")]  # which has no sequence


@pytest.mark.parametrize(("model", "schedule"), CASES)
def test_what_a_schedule_decides(model, schedule, golden):
    part = traced(model).partition(SCHEDULES[schedule])

    golden(f"{model}-4x2-{schedule}", table_of(part))


def test_partirs_transformer_counts(golden):
    """Published for this model are the first three rows (arXiv 2401.11202); the others are ours."""
    example = zoo.partir_t32()
    tr = partir.jit(example.fun, mesh=MESH, donate_argnums=example.donate_argnums).trace(*example.args)

    lines = [f"{name}: {counts_of(tr.partition(SCHEDULES[name]).collectives)}" for name in TABLE]

    golden("partir_t32-4x2", "\n".join(lines))
