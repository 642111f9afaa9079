"""Edge parallelism finds edges by what a program does with them, in graph networks of any form, written in any way."""

from collections import Counter
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from equal import assert_same, mesh_of
from hlo import collectives_in

import partir
from partir import DataParallel, EdgeParallel, Manual, NoEffectError, zoo

pytestmark = pytest.mark.jax

NODES, EDGES, WIDTH = 16, 32, 8


def _shape(*dims: int, dtype: str = "float64") -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(dims, dtype)


def _index(*dims: int) -> jax.ShapeDtypeStruct:
    return _shape(*dims, dtype="int32")


GRAPH = {"nodes": _shape(NODES, WIDTH), "senders": _index(EDGES), "receivers": _index(EDGES)}


def sums(graph):
    """One step of message passing without parameters."""
    messages = jnp.tanh(graph["nodes"][graph["senders"]])
    return jax.ops.segment_sum(messages, graph["receivers"], NODES)


def sums_by_at(graph):
    """The same with `.at[].add`."""
    messages = jnp.tanh(jnp.take(graph["nodes"], graph["senders"], axis=0))
    return jnp.zeros_like(graph["nodes"]).at[graph["receivers"]].add(messages)


def largest(graph):
    """The largest of what a node is sent."""
    return jax.ops.segment_max(graph["nodes"][graph["senders"]], graph["receivers"], NODES)


def attention(graph):
    """A softmax over the edges each node receives (Velickovic et al. 2018): their maximum, their sum, the weighted sum."""
    senders, receivers = (graph["nodes"][graph[name]] for name in ("senders", "receivers"))
    scores = jnp.sum(senders * receivers, axis=-1)
    peak = jnp.where(jnp.isfinite(top := jax.ops.segment_max(scores, graph["receivers"], NODES)), top, 0.0)
    weights = jnp.exp(scores - peak[graph["receivers"]])
    total = jax.ops.segment_sum(weights, graph["receivers"], NODES)
    weights = weights / total[graph["receivers"]]
    return jax.ops.segment_sum(weights[:, None] * senders, graph["receivers"], NODES)


def both_ways(graph):
    """Messages along edges, and against them: two sums that are added, and reduced once."""
    there = jax.ops.segment_sum(graph["nodes"][graph["senders"]], graph["receivers"], NODES)
    back = jax.ops.segment_sum(graph["nodes"][graph["receivers"]], graph["senders"], NODES)
    return there + back


def gradient(graph):
    """The gradient of the nodes: what both ends of edges send back is added, and reduced once."""

    def loss(nodes):
        product = nodes[graph["senders"]] * nodes[graph["receivers"]]
        return jnp.sum(jax.ops.segment_sum(product, graph["receivers"], NODES) ** 2)

    return jax.grad(loss)(graph["nodes"])


COLLECTIVES = {
    sums: {"all_reduce": 1},
    sums_by_at: {"all_reduce": 1},
    largest: {"all_reduce": 1},
    attention: {"all_reduce": 3},
    both_ways: {"all_reduce": 1},
    gradient: {"all_reduce": 2},
}


def concrete(tree: Any, rng: np.random.Generator) -> Any:
    """Random arguments; every index is one of a node."""

    def draw(leaf: jax.ShapeDtypeStruct) -> np.ndarray[Any, Any]:
        if leaf.dtype == np.int32:
            return rng.integers(NODES, size=leaf.shape).astype(np.int32)
        return rng.standard_normal(leaf.shape)

    return jax.tree.map(draw, tree)


@pytest.mark.parametrize("fun", COLLECTIVES, ids=lambda fun: fun.__name__)
def test_each_reduction_over_edges_is_one_all_reduce(fun, x64, rng):
    part = partir.jit(fun, mesh=mesh_of("4x2")).trace(GRAPH).partition([EdgeParallel("data")])

    assert part.collectives == COLLECTIVES[fun]
    assert part.in_specs[0] == {"nodes": jax.P(), "senders": jax.P("data"), "receivers": jax.P("data")}
    compiled = part.lower().compile()
    assert collectives_in(compiled.as_text()) == part.collectives
    graph = concrete(GRAPH, rng)
    assert_same(compiled(*jax.device_put((graph,), part.in_shardings)), jax.jit(fun)(graph))


def test_of_a_hierarchy_only_the_lowest_level_is_split(x64):
    """Nodes are rows that edges send to, and send to graphs themselves: nodes stay replicated."""

    def pooled(graph, graph_of):
        nodes = sums(graph)
        graphs = jax.ops.segment_sum(nodes, graph_of, 4)
        return jax.ops.segment_sum(nodes * graphs[graph_of], graph_of, 4)

    part = partir.jit(pooled, mesh=mesh_of("4x2")).trace(GRAPH, _index(NODES)).partition([EdgeParallel("data")])

    assert part.in_specs == ({"nodes": jax.P(), "senders": jax.P("data"), "receivers": jax.P("data")}, jax.P())
    assert part.collectives == {"all_reduce": 1}


def test_each_set_of_edges_is_split(x64):
    """Two kinds of edges between the same nodes, of different sizes."""
    other = {"nodes": GRAPH["nodes"], "senders": _index(24), "receivers": _index(24)}

    def typed(first, second):
        return sums(first) + sums({**second, "nodes": first["nodes"]})

    part = partir.jit(typed, mesh=mesh_of("4x2")).trace(GRAPH, other).partition([EdgeParallel("data")])

    assert part.in_specs[0]["senders"] == part.in_specs[1]["receivers"] == jax.P("data")
    assert part.collectives == {"all_reduce": 1}


def test_nodes_split_over_the_same_axis_are_gathered_for_their_edges_and_scattered_to(x64):
    part = (
        partir.jit(sums, mesh=mesh_of("4x2"), out_shardings=jax.P("data"))
        .trace(GRAPH)
        .partition([EdgeParallel("data"), DataParallel("data", inputs="graph/nodes")])
    )

    assert part.in_specs[0]["nodes"] == jax.P("data")
    assert part.collectives == {"all_gather": 1, "reduce_scatter": 1}


def test_embedding_tables_are_no_graph():
    """Tokens look rows up, and their gradient is scattered into them, but the forward pass scatters nothing."""
    example = zoo.gpt(layers=1, d_model=32, heads=4, vocab=64, seq=8, batch=8)
    traced = partir.jit(example.fun, mesh=mesh_of("4x2"), donate_argnums=(0, 1)).trace(*example.args)

    with pytest.raises(NoEffectError, match=r"EdgeParallel\(axis='data'\) finds no edges to split"):
        traced.partition([EdgeParallel("data")])


def test_edges_that_do_not_divide_are_named(x64):
    graph = {**GRAPH, "senders": _index(30), "receivers": _index(30)}
    traced = partir.jit(sums, mesh=mesh_of("4x2")).trace(graph)

    with pytest.raises(NoEffectError, match=r"of 1 classes of edges none is free and divides by 4: .*dim 0 \(30\)"):
        traced.partition([EdgeParallel("data")])


def test_edges_that_are_split_already_are_no_effect(x64):
    traced = partir.jit(sums, mesh=mesh_of("4x2")).trace(GRAPH)

    with pytest.raises(NoEffectError, match="of 1 classes of edges none is free"):
        traced.partition([Manual({"graph/senders": 0}, axis="data"), EdgeParallel("data")])


def test_edges_take_several_axes(x64):
    part = partir.jit(sums, mesh=mesh_of("4x2")).trace(GRAPH).partition([EdgeParallel("data"), EdgeParallel("model")])

    assert part.in_specs[0]["senders"] == jax.P(("data", "model"))
    assert part.collectives == {"all_reduce": 1}


@pytest.mark.parametrize("steps", [1, 2, 3])
def test_graph_network_simulator_reduces_once_per_step_and_direction(steps):
    """Automap and PartIR report that edge sharding of this model needs all_reduces only (Alabed et al. 2022 and 2024)."""
    example = zoo.gns(steps=steps, latent=8, nodes=NODES, edges=EDGES, optimizer="sgd")
    traced = partir.jit(example.fun, mesh=mesh_of("4x2"), donate_argnums=(0, 1)).trace(*example.args)

    part = traced.partition([EdgeParallel("data")])

    edge_tensors = sum("/edge/" in path for path in example.args[0] for _ in example.args[0][path])
    assert edge_tensors == 8 * (steps + 1)
    assert part.collectives == {"all_reduce": 2 * steps + edge_tensors}
    reduces = [op for op in part.spmd.walk() if op.name == "spmd.all_reduce"]
    of_nodes = [op for op in reduces if op.results[0].type.get_shape() == (NODES, 8)]
    phases = Counter(op.attributes["partir.origin"].phase.data for op in of_nodes)
    assert phases == {"forward": steps, "backward": steps}
