"""docs/how-to/add-a-tactic.md: the tactic on the page does what the page says."""

import jax
import pytest
from equal import assert_same, mesh_of
from how_to_pages import code_of, names_of

import partir
from partir import zoo

pytestmark = pytest.mark.jax

GPT = zoo.gpt(layers=1, d_model=16, heads=2, vocab=32, seq=8, batch=8)
HEAD = names_of("add-a-tactic")["VocabularyHead"]


def test_fits_on_a_screen_and_uses_public_names_alone():
    code = code_of("add-a-tactic")

    assert len(code.splitlines()) <= 40
    assert [line for line in code.splitlines() if "import" in line and "partir" in line] == ["import partir"]


def test_splits_the_head_and_nothing_else():
    tr = partir.jit(GPT.fun, mesh=mesh_of("4x2"), donate_argnums=GPT.donate_argnums).trace(*GPT.args)

    part = tr.partition([HEAD("model")])

    assert [str(action) for action in part.strategy.actions] == ["Tile(value='params/logits/w', dim=1, axis='model')"]
    with pytest.raises(partir.NoEffectError, match="of 1, none is free"):
        tr.partition([HEAD("model"), HEAD("model")])


def test_computes_what_one_device_computes(x64):
    args = GPT.concrete(dtype="float64")
    tr = partir.jit(GPT.fun, mesh=mesh_of("4x2"), donate_argnums=GPT.donate_argnums).trace(*args)

    part = tr.partition([partir.DataParallel("data"), partir.Megatron("model"), HEAD("model")])

    assert_same(part(*jax.device_put(args, part.in_shardings)), jax.jit(GPT.fun)(*args))
