"""Llama, the vision transformer and decoding under their natural schedules: decided, counted, and equal to one device."""

import functools
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from equal import assert_same, mesh_of
from hlo import collectives_in
from schedules import SCHEDULES
from specs_table import table_of

import partir
from partir import DataParallel, Megatron, MultiQuery, NoEffectError, zoo
from partir.runtime.interpret import interpret
from partir.tactics import Tactic
from partir.zoo import Example

pytestmark = pytest.mark.jax

LAYERS, STEPS = 3, 5
"""Odd, so that no other size is taken for them."""


def _stacked_decode(params: Any, cache: Any, tokens: jax.Array) -> Any:
    """Multi-query decoding with stacked layers: a loop over layers in a loop over steps, with one cache for all layers."""
    _, batch, seq, heads, width = cache["key"].shape

    def step(carried: Any, position: jax.Array) -> Any:
        tokens, cache = carried

        def layer(x: jax.Array, stacked: Any) -> Any:
            own, kept = stacked
            new = {name: (x @ own[name]).reshape(batch, 1, heads, width) for name in ("key", "value")}
            kept = {n: jax.lax.dynamic_update_slice_in_dim(kept[n], new[n], position, axis=1) for n in new}
            query = (x @ own["query"]).reshape(batch, heads, -1, width)
            scores = jnp.where(jnp.arange(seq) <= position, jnp.einsum("bkgh,bskh->bkgs", query, kept["key"]), -1e9)
            mixed = jnp.einsum("bkgs,bskh->bkgh", jax.nn.softmax(scores), kept["value"])
            return jnp.tanh(x + mixed.reshape(x.shape) @ own["output"]), kept

        x, cache = jax.lax.scan(layer, params["embed"][tokens], (params["layers"], cache))
        following = jnp.argmax(x @ params["embed"].T, axis=-1).astype(tokens.dtype)
        return (following, cache), following

    (_, cache), generated = jax.lax.scan(step, (tokens, cache), jnp.arange(STEPS))
    return generated.T, cache


def _stacked_example() -> Example:
    def shape(*dims: int, dtype: str = "float32") -> jax.ShapeDtypeStruct:
        return jax.ShapeDtypeStruct(dims, dtype)

    narrow, wide, kept = shape(LAYERS, 32, 4), shape(LAYERS, 32, 32), shape(LAYERS, 8, 16, 1, 4)
    layers = {"query": wide, "key": narrow, "value": narrow, "output": wide}
    params, cache = {"embed": shape(64, 32), "layers": layers}, {"key": kept, "value": kept}
    return Example(_stacked_decode, (params, cache, shape(8, dtype="int32")), (1,), integer_bounds={"tokens": 64})


_LLAMA = {"layers": LAYERS, "d_model": 32, "heads": 8, "kv_heads": 4, "d_ff": 48, "vocab": 64, "seq": 8, "batch": 8}
_GPT = {"layers": 2, "d_model": 32, "heads": 8, "vocab": 64, "seq": 16, "batch": 8, "steps": STEPS}

MODELS: dict[str, Example] = {
    "llama": zoo.llama(**_LLAMA, compute_dtype=None),
    "vit": zoo.vit(layers=1, d_model=32, heads=4, d_ff=64, patch=4, image=8, classes=8, batch=8, optimizer="momentum"),
    "gpt_decode": zoo.gpt_decode(**_GPT),
    "gpt_decode-multi-query": zoo.gpt_decode(**_GPT, kv_heads=1),
    "stacked_decode": _stacked_example(),
}

MULTI_QUERY = [DataParallel("data"), Megatron("model"), MultiQuery("model")]
OWN: dict[str, Sequence[Tactic]] = {**SCHEDULES, "both+multi-query": MULTI_QUERY}

CASES = [
    *[("llama", schedule) for schedule in ("batch", "megatron", "both", "both+zero3", "megatron+sequence")],
    *[("vit", schedule) for schedule in ("batch", "megatron", "both", "zero3")],
    *[("gpt_decode", schedule) for schedule in ("batch", "megatron", "both")],
    *[("gpt_decode-multi-query", schedule) for schedule in ("both", "both+multi-query")],
    ("stacked_decode", "both+multi-query"),
]


@functools.cache
def arguments_and_expected(model: str) -> tuple[Any, Any]:
    """Real arguments of a model, and what one device computes of them."""
    example = MODELS[model]
    args = example.concrete(dtype="float64")
    return args, jax.jit(example.fun)(*args)


@functools.cache
def traced(model: str) -> partir.Traced:
    example = MODELS[model]
    args, _ = arguments_and_expected(model)
    return partir.jit(example.fun, mesh=mesh_of("4x2"), donate_argnums=example.donate_argnums).trace(*args)


@pytest.mark.parametrize(("model", "schedule"), CASES)
def test_decided_as_written_down_and_equal_to_one_device(model, schedule, golden, x64):
    args, expected = arguments_and_expected(model)
    part = traced(model).partition(OWN[schedule])
    compiled = part.lower().compile()

    golden(f"{model}-4x2-{schedule}", table_of(part))
    assert collectives_in(compiled.as_text()) == part.collectives
    assert_same(compiled(*jax.device_put(args, part.in_shardings)), expected)


@pytest.mark.parametrize(("model", "schedule"), [("llama", "both+zero3"), ("stacked_decode", "both+multi-query")])
def test_core_in_nested_loops_equals_one_device(model, schedule, x64):
    args, expected = arguments_and_expected(model)
    tr = traced(model)

    results = interpret(tr.partition(OWN[schedule]).core, [*jax.tree.leaves(args), *tr.program.constants])

    assert_same(jax.tree.unflatten(tr.program.trees.results, results), expected)


# ---- the counts an expert expects


@functools.cache
def planned(schedule: str, **settings: Any) -> partir.Partitioned:
    """A llama under a schedule, on shapes alone."""
    example = zoo.llama(**(_LLAMA | settings))
    step = partir.jit(example.fun, mesh=partir.Mesh(data=4, model=2), donate_argnums=example.donate_argnums)
    return step.trace(*example.args).partition(OWN[schedule])


def by_phase(part: partir.Partitioned, kind: str) -> dict[str, int]:
    """How often one collective runs in each phase; what no phase wants is left out."""
    counts: dict[str, int] = {}
    for op in part.spmd.walk():
        if op.name == f"spmd.{kind}":
            times, loop = 1, op.parent_op()
            while loop is not None:
                times *= loop.attributes["partir.trips"].value.data if "partir.trips" in loop.attributes else 1
                loop = loop.parent_op()
            phase = op.attributes["partir.origin"].phase.data.value
            counts[phase] = counts.get(phase, 0) + times
    return counts


def test_megatron_reduces_twice_per_layer_and_direction_and_once_where_a_layer_is_recomputed():
    kept, recomputed = (planned("megatron", remat=remat) for remat in (False, True))

    assert by_phase(kept, "all_reduce") == {"forward": 2 * LAYERS, "backward": 2 * LAYERS}
    # What the MLP gave is not wanted again; what attention gave is, by the MLP.
    assert by_phase(recomputed, "all_reduce") == {"forward": 2 * LAYERS, "backward": 2 * LAYERS, "recomputed": LAYERS}


def test_sequence_parallel_makes_each_of_them_a_gather_and_a_scatter():
    kept, recomputed = (planned("megatron+sequence", remat=remat) for remat in (False, True))

    for part in (kept, recomputed):
        again = {"recomputed": LAYERS} if part is recomputed else {}
        assert by_phase(part, "reduce_scatter") == {"forward": 2 * LAYERS, "backward": 2 * LAYERS, **again}
    # What goes into the matrices is kept as slices, and gathered again for their gradients (Korthikanti et al. 2022, 4.2.2).
    assert by_phase(kept, "all_gather") == {"forward": 2 * LAYERS, "backward": 4 * LAYERS}
    assert by_phase(recomputed, "all_gather") == {"forward": 2 * LAYERS, "recomputed": 2 * LAYERS, "backward": 2 * LAYERS}


def test_zero_3_gathers_one_layer_at_a_time_once_forward_and_once_backward():
    part = planned("both+zero3")
    stacks, others = 9, {"embed", "final_norm", "logits"}

    # The table's gradient does not read the table.
    assert part.collectives["all_gather"] == 2 * stacks * LAYERS + 2 * len(others) - 1
    assert part.collectives["reduce_scatter"] == stacks * LAYERS + len(others)
    gathered = [op.results[0].type for op in part.spmd.walk() if op.name == "spmd.all_gather"]
    assert gathered
    assert all(LAYERS not in type_.get_shape() for type_ in gathered), "never the whole stack"


def test_weights_are_gathered_in_the_dtype_they_are_computed_in():
    part = planned("both+zero3")

    inside = [op for op in part.spmd.walk() if op.name == "spmd.all_gather" and op.parent_op().name == "stablehlo.while"]

    assert {str(op.results[0].type.element_type) for op in inside} == {"bf16"}


def test_the_forward_pass_alone_reduces_twice_per_layer():
    part = planned("both", training=False)

    assert part.collectives == {"all_reduce": 2 * LAYERS}


def test_a_deeper_llama_has_no_more_ops():
    assert planned("both", layers=40).traced.scopes.total == planned("both").traced.scopes.total


# ---- multi-query


def test_multi_query_moves_queries_to_the_batch_and_results_back(x64):
    part = traced("gpt_decode-multi-query").partition(MULTI_QUERY)

    assert part.collectives == {"all_reduce": 2 * 2 * STEPS, "all_to_all": 2 * 2 * STEPS}
    for moved in (op for op in part.spmd.walk() if op.name == "spmd.all_to_all"):
        assert moved.operands[0].type.get_shape()[0] in (1, 2), "one position of a few sequences, never the cache"


def test_multi_query_splits_the_memory_of_the_cache(x64):
    before, after = (traced("gpt_decode-multi-query").partition(s) for s in (MULTI_QUERY[:2], MULTI_QUERY))

    assert before.in_specs[1]["layer_0"]["key"] == jax.sharding.PartitionSpec("data")
    assert after.in_specs[1]["layer_0"]["key"] == jax.sharding.PartitionSpec(("data", "model"))
    assert before.in_specs[0] == after.in_specs[0]  # parameters lie as Megatron has them


def test_multi_query_can_be_saved_and_replayed(x64, tmp_path):
    part = traced("stacked_decode").partition(MULTI_QUERY)
    part.strategy.save(tmp_path / "s.json")

    again = traced("stacked_decode").partition([partir.load_strategy(tmp_path / "s.json")])

    assert again.collectives == part.collectives == {"all_reduce": LAYERS * STEPS, "all_to_all": 2 * LAYERS * STEPS}


def test_multi_query_without_a_cache_says_so(x64):
    with pytest.raises(NoEffectError, match=r"MultiQuery\(axis='model'\) finds no cache to split\n.*no state has a batch"):
        traced("vit").partition([DataParallel("data"), MultiQuery("model")])


def test_multi_query_on_a_cache_that_heads_split_says_so(x64):
    with pytest.raises(NoEffectError, match=r'finds no cache to split\n.*all 4 caches are split over "model" already'):
        traced("gpt_decode").partition(MULTI_QUERY)


def test_multi_query_on_a_batch_that_does_not_divide_names_it():
    example = zoo.gpt_decode(**(_GPT | {"layers": 1, "batch": 4}), kv_heads=1)
    tr = partir.jit(example.fun, mesh=partir.Mesh(data=4, model=2), donate_argnums=(1,)).trace(*example.args)

    with pytest.raises(NoEffectError, match=r"finds no batch to split\n.*cache/layer_0/key \(4\) on 8 devices"):
        tr.partition(MULTI_QUERY)


def test_megatron_takes_the_query_heads_where_one_key_head_serves_them_all(x64):
    part = traced("gpt_decode-multi-query").partition([Megatron("model")])

    params, cache, _ = part.in_specs
    assert params["layer_0/attention/query"]["w"] == jax.sharding.PartitionSpec(None, "model")
    assert params["layer_0/attention/value"]["w"] == jax.sharding.PartitionSpec()
    assert all(spec == jax.sharding.PartitionSpec() for spec in jax.tree.leaves(cache))


def test_arrays_made_of_constants_are_not_carried_by_a_loop():
    """JAX carries rotary tables through the loop over layers; carried, they were gathered in every round."""
    table = np.cos(np.arange(8.0))[:, None] * np.ones((1, 16))

    def scanned(stack: jax.Array, x: jax.Array) -> jax.Array:
        turned = jnp.sin(jnp.arange(8.0))[:, None] * jnp.ones((8, 16))
        return jax.lax.scan(lambda x, w: (jnp.tanh(x @ w) * turned + table, None), x, stack)[0]

    args = (np.ones((4, 16, 16), np.float32), np.ones((2, 8, 16), np.float32))
    part = partir.jit(scanned, mesh=mesh_of("4x2")).trace(*args).partition([partir.Tile("x", 1, "model")])

    (loop,) = [op for op in part.program.module.walk() if op.name == "stablehlo.while"]
    assert len(loop.operands) == 3  # counter, x, stack
    assert part.collectives == {}
    np.testing.assert_allclose(part(*args), jax.jit(scanned)(*args), rtol=1e-6)
