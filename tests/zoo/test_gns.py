"""The graph network simulator is one: it has the parameters it says, and treats edges and nodes as sets."""

import math

import jax
import numpy as np
import pytest
from equal import assert_same

from partir.zoo import gns

pytestmark = pytest.mark.jax

SMALL = {"steps": 2, "latent": 8, "nodes": 12, "edges": 30}


EXAMPLE = gns(**SMALL)


LOSS = jax.jit(lambda *args: EXAMPLE.fun(*args)[2])
"""The loss alone: XLA leaves out what it does not need."""


def loss_of(*args):
    return float(LOSS(*args))


@pytest.mark.parametrize("steps", [1, 10])
def test_parameters_are_those_of_two_mlps_a_step_and_three_besides(steps):
    params = gns(steps=steps).args[0]

    tensors = 3 * 2 + 2  # of an MLP with two hidden layers and a layer norm
    assert len(jax.tree.leaves(params)) == 1 + (2 * steps + 2) * tensors + 6
    layers = [(3, 128), (128, 128), (128, 128)]
    assert [params[f"encoder/edge/linear_{i}"]["w"].shape for i in range(3)] == layers
    assert params["encoder/node/linear_0"]["w"].shape == (7 * 2 + 16, 128)
    assert params["step_0/edge/linear_0"]["w"].shape == (3 * 128, 128)
    assert params["step_0/node/linear_0"]["w"].shape == (2 * 128, 128)
    assert params["decoder/linear_2"]["w"].shape == (128, 2)


@pytest.mark.parametrize("batch", [None, 3])
def test_one_step_in_double_precision_is_finite_and_stays_so(batch, x64):
    example = gns(**SMALL, batch=batch, clip=1.0)
    args = example.concrete(dtype="float64")

    params, opt_state, loss = jax.jit(example.fun)(*args)

    assert math.isfinite(loss)
    assert loss.dtype == np.float64
    for old, new in zip(jax.tree.leaves(args[:2]), jax.tree.leaves((params, opt_state)), strict=True):
        assert (old.shape, old.dtype) == (new.shape, new.dtype)


def test_order_of_edges_does_not_matter(x64, rng):
    params, opt_state, batch = EXAMPLE.concrete(dtype="float64")
    order = rng.permutation(SMALL["edges"])
    shuffled = batch | {name: batch[name][order] for name in ("edges", "senders", "receivers")}

    assert loss_of(params, opt_state, shuffled) == pytest.approx(loss_of(params, opt_state, batch), rel=1e-12)


def test_names_of_nodes_do_not_matter_but_ends_of_edges_do(x64, rng):
    params, opt_state, batch = EXAMPLE.concrete(dtype="float64")
    order = rng.permutation(SMALL["nodes"])
    place = np.argsort(order)
    renamed = (
        batch
        | {name: batch[name][order] for name in ("nodes", "types", "targets")}
        | {name: place[batch[name]].astype(np.int32) for name in ("senders", "receivers")}
    )
    expected = loss_of(params, opt_state, batch)

    assert loss_of(params, opt_state, renamed) == pytest.approx(expected, rel=1e-12)
    turned = batch | {"senders": batch["receivers"], "receivers": batch["senders"]}
    assert loss_of(params, opt_state, turned) != pytest.approx(expected, rel=1e-6)


def test_batch_of_graphs_is_each_graph_by_itself(x64):
    many, one = gns(**SMALL, batch=3, optimizer="sgd"), gns(**SMALL, optimizer="sgd")
    params, opt_state, batch = many.concrete(dtype="float64")

    new, _, loss = jax.jit(many.fun)(params, opt_state, batch)

    alone = [jax.jit(one.fun)(params, opt_state, {name: leaf[i] for name, leaf in batch.items()}) for i in range(3)]
    assert_same(loss, np.mean([loss for _, _, loss in alone]))
    assert_same(new, jax.tree.map(lambda *leaves: np.mean(leaves, axis=0), *(new for new, _, _ in alone)))


def test_blocks_stand_in_named_scopes_within_their_step():
    text = jax.jit(EXAMPLE.fun).lower(*EXAMPLE.args).as_text(debug_info=True)

    for scope in ("encoder)/edge-block/edge", "step_1)/edge-block/edge", "step_1)/node-block/node", "decoder)/linear_0"):
        assert f"jvp({scope}" in text
