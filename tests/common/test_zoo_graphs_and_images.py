"""Graph networks and models of images under the schedules that suit them: what is decided, which collectives, same numbers."""

import functools
from collections.abc import Sequence
from typing import Any

import jax
import pytest
from equal import assert_same, mesh_of
from hlo import collectives_in
from specs_table import table_of

import partir
from partir import DataParallel, EdgeParallel, Megatron, ZeRO, zoo
from partir.tactics import Tactic
from partir.zoo import Example

pytestmark = pytest.mark.jax

MODELS: dict[str, Example] = {
    "gns": zoo.gns(steps=2, latent=8, nodes=16, edges=32, dims=2),
    "gns_batched": zoo.gns(steps=2, latent=8, nodes=16, edges=32, batch=4),
    "wide_resnet": zoo.wide_resnet(depth=10, width=2, channels=8, classes=8, image=8, batch=8),
    "wide_resnet_group_norm": zoo.wide_resnet(depth=10, width=2, channels=8, classes=8, image=8, batch=8, norm="group"),
    "unet": zoo.unet(8, (1, 2), 1, image=8, batch=8, attention_at=(4,), heads=2, groups=4, optimizer="momentum"),
}

_EDGES, _BATCH, _CHANNELS = EdgeParallel("data"), DataParallel("data"), Megatron("model")

SCHEDULES: dict[tuple[str, str], Sequence[Tactic]] = {
    ("gns", "edges"): [_EDGES],
    ("gns", "edges+nodes"): [_EDGES, DataParallel("data", inputs="batch/nodes")],
    ("gns", "edges+nodes+zero3"): [_EDGES, DataParallel("data", inputs="batch/nodes"), ZeRO("data", stage=3)],
    ("gns_batched", "batch+edges"): [_BATCH, EdgeParallel("model")],
    ("gns_batched", "batch+edges+zero2"): [_BATCH, EdgeParallel("model"), ZeRO("data", stage=2)],
    ("wide_resnet", "batch"): [_BATCH],
    ("wide_resnet", "batch+channels"): [_BATCH, _CHANNELS],
    ("wide_resnet", "zero3"): [_BATCH, ZeRO("data", stage=3)],
    ("wide_resnet_group_norm", "batch+channels"): [_BATCH, _CHANNELS],
    ("wide_resnet_group_norm", "zero3"): [_BATCH, ZeRO("data", stage=3)],
    ("unet", "batch"): [_BATCH],
    ("unet", "batch+channels"): [_BATCH, _CHANNELS],
    ("unet", "zero2"): [_BATCH, ZeRO("data", stage=2)],
    ("unet", "batch+channels+zero3"): [_BATCH, _CHANNELS, ZeRO("data", stage=3)],
}
"""By model: what an expert would do with it. Channels are the hidden ones of a block, found as a transformer's are."""


@functools.cache
def arguments_and_expected(model: str) -> tuple[Any, Any]:
    """Real arguments of a model in float64, and what one device computes of them."""
    example = MODELS[model]
    args = example.concrete(dtype="float64")
    return args, jax.jit(example.fun)(*args)


@functools.cache
def traced(model: str) -> partir.Traced:
    example = MODELS[model]
    args, _ = arguments_and_expected(model)
    return partir.jit(example.fun, mesh=mesh_of("4x2"), donate_argnums=example.donate_argnums).trace(*args)


@pytest.mark.parametrize(("model", "schedule"), SCHEDULES)
def test_what_a_schedule_decides_and_that_it_computes_the_same(model, schedule, golden, x64):
    args, expected = arguments_and_expected(model)

    part = traced(model).partition(SCHEDULES[model, schedule])

    golden(f"{model}-4x2-{schedule}", table_of(part))
    compiled = part.lower().compile()
    assert collectives_in(compiled.as_text()) == part.collectives
    assert_same(compiled(*jax.device_put(args, part.in_shardings)), expected)


# ---- the same, counted: which collectives, and why


def tensors(model: str) -> list[str]:
    """The paths of a model's parameters, one for each tensor."""
    leaves = jax.tree_util.tree_leaves_with_path(MODELS[model].args[0])
    return [jax.tree_util.keystr(path, simple=True, separator="/") for path, _ in leaves]


def collectives(model: str, schedule: str) -> dict[str, int]:
    return traced(model).partition(SCHEDULES[model, schedule]).collectives


def sharded(model: str, schedule: str) -> list[str]:
    """The parameters that lie over the data axis."""
    specs = traced(model).partition(SCHEDULES[model, schedule]).in_specs[0]
    leaves = jax.tree_util.tree_leaves_with_path(specs, is_leaf=lambda x: isinstance(x, jax.P))
    return [jax.tree_util.keystr(path, simple=True, separator="/") for path, spec in leaves if "data" in spec]


STEPS = 2
LOSS = 1


def test_edges_of_a_batch_are_reduced_over_their_axis_alone(x64):
    """Each gradient is one all_reduce, over both axes where edges made it; each step of message passing two over the edges'."""
    assert collectives("gns_batched", "batch+edges") == {"all_reduce": len(tensors("gns_batched")) + LOSS + 2 * STEPS}


def test_nodes_cut_over_the_axis_of_edges_are_gathered_once_a_step_and_direction(x64):
    """And scattered to: messages once a step, and on the way back what senders and receivers get, each by itself."""
    assert collectives("gns", "edges+nodes") == {
        "all_gather": 2 * STEPS,
        "all_reduce": len(tensors("gns")) + LOSS,
        "reduce_scatter": 3 * STEPS,
    }


def test_zero_shards_matrices_that_read_several_vectors_side_by_side(x64):
    """Their rows are the width three times over, which no PartitionSpec can cut within: their columns are cut. Gradients of
    edges' parameters are scattered over the batch's axis, and what is left reduced over the edges'."""
    part = traced("gns_batched").partition(SCHEDULES["gns_batched", "batch+edges+zero2"])
    moments = part.in_specs[1][0].mu
    own = [f"{path}/{name}" for path, specs in moments.items() for name, spec in specs.items() if "data" in spec]
    of_edges = [path for path in own if "/edge/" in path]

    assert moments["step_0/edge/linear_0"]["w"] == moments["step_0/node/linear_0"]["w"] == jax.P(None, "data")
    assert part.collectives == {
        "all_gather": len(own),
        "all_reduce": len(tensors("gns_batched")) - len(own) + LOSS + len(of_edges) + 2 * STEPS,
        "reduce_scatter": len(own),
    }


def test_batch_norms_owe_three_sums_of_their_own(x64):
    """Mean and mean square, and the mean's gradient; the mean square's is that of the scale. Group norms owe none."""
    norms = sum(path.endswith("scale") for path in tensors("wide_resnet"))

    assert collectives("wide_resnet", "batch") == {"all_reduce": len(tensors("wide_resnet")) + LOSS + 3 * norms}


@pytest.mark.parametrize("model", ["wide_resnet", "wide_resnet_group_norm"])
def test_channels_within_blocks_are_reduced_once_per_block_and_direction(model, x64):
    blocks, norms = 3, sum(path.endswith("scale") for path in tensors(model))
    below = len(tensors(model)) + LOSS + (3 * norms if model == "wide_resnet" else 0)

    assert collectives(model, "batch+channels") == {"all_reduce": below + 2 * blocks}


def test_zero_3_gathers_kernels_twice_and_biases_once(x64):
    """Textbook: a reduce_scatter for each sharded gradient; what backward reads again is gathered again."""
    model, schedule = "wide_resnet_group_norm", "zero3"
    own = sharded(model, schedule)
    read_backward = [path for path in own if path.endswith(("/w", "/scale"))]

    assert len(own) > 0.7 * len(tensors(model))
    assert collectives(model, schedule) == {
        "all_gather": len(own) + len(read_backward),
        "all_reduce": len(tensors(model)) + LOSS - len(own),
        "reduce_scatter": len(own),
    }


def shared_gradients(model: str) -> int:
    """Where a block has a shortcut of its own, the gradient of its bias is that of the last convolution's: one sum."""
    return sum(path.endswith("shortcut/b") for path in tensors(model))


def test_unet_under_a_batch_reduces_each_gradient_once(x64):
    assert collectives("unet", "batch") == {"all_reduce": len(tensors("unet")) + LOSS - shared_gradients("unet")}


def test_unet_under_channels_reduces_once_per_block_attention_and_time_and_direction(x64):
    blocks = sum(path.endswith("conv_0/w") for path in tensors("unet"))
    attentions = sum(path.endswith("query/w") for path in tensors("unet"))

    both, batch = collectives("unet", "batch+channels"), collectives("unet", "batch")

    assert both["all_reduce"] - batch["all_reduce"] == 2 * (blocks + attentions + 1)


def test_unet_under_zero_2_gathers_new_parameters_only(x64):
    part = traced("unet").partition(SCHEDULES["unet", "zero2"])

    gathers = [op for op in part.spmd.walk() if op.name == "spmd.all_gather"]
    assert gathers
    assert all(use.operation.name == "func.return" for op in gathers for use in op.results[0].uses)
