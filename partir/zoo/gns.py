"""Graph network simulators (particles that exchange messages along edges), with their training step."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import haiku as hk
import jax
import jax.numpy as jnp

from partir.zoo.example import Example
from partir.zoo.training import level, optimizer_of, training_example


def gns(
    steps: int = 10,
    latent: int = 128,
    nodes: int = 1024,
    edges: int = 8192,
    *,
    batch: int | None = None,
    hidden_layers: int = 2,
    hidden: int | None = None,
    dims: int = 2,
    history: int = 5,
    types: int = 9,
    type_width: int = 16,
    clip: float | None = None,
    learning_rate: float = 1e-4,
    optimizer: str = "adam",
    dtype: str = "float32",
    name: str | None = None,
) -> Example:
    """A training step of a graph network simulator: `train_step(params, opt_state, batch)`.

    The published simulator of particles: an encoder, `steps` steps of message passing, and a decoder; the defaults are its
    sizes. With N = `nodes`, E = `edges`, D = `dims`, F = (`history` + 2) D:

    - `batch["nodes"]` dtype[N, F]: the last velocities of a particle, and its distances to the 2 D walls;
    - `batch["types"]` int32[N], in [0, `types`): the material of each particle;
    - `batch["edges"]` dtype[E, D + 1]: displacement from sender to receiver, and its length;
    - `batch["senders"]` and `batch["receivers"]` int32[E], in [0, N): the two ends of each edge;
    - `batch["targets"]` dtype[N, D]: the accelerations to predict.

    With `batch` graphs of one size per step, each of these has a leading dim of that size. The loss is the mean squared
    error, over all particles and dims.

    One step of message passing computes, each with residuals, `e' = mlp([e, n[sender], n[receiver]])` of every edge and
    `n' = mlp([n, sum of e' over the edges received])` of every particle. Scopes: `edge-block` and `node-block`, within
    `encoder` and `step_<i>`, and `decoder`.

    Parameters, with L = `latent` and H = `hidden`: `types/embeddings` [`types`, `type_width`], and MLPs `encoder/edge`,
    `encoder/node`, `step_i/edge`, `step_i/node` and `decoder`. An MLP has `hidden_layers` + 1 linear layers
    `linear_j/{w,b}`, of width H and L (the decoder: D) at last, and all but the decoder `norm/{scale,offset}`.

    >>> step = gns(steps=1, latent=16, nodes=8, edges=32)
    >>> step.args[0]["step_0/edge/linear_0"]["w"].shape
    (48, 16)
    >>> len(jax.tree.leaves(step.args[0]))
    39

    Source: Sanchez-Gonzalez et al. 2020, "Learning to Simulate Complex Physics with Graph Networks", sections 4.2 and 4.3
    and appendix (10 steps, latent size 128, two hidden layers of 128, layer norms after all MLPs but the decoder's).

    Args:
        steps: message-passing steps; each has parameters of its own.
        latent: width of edges and nodes between MLPs.
        nodes: particles in a graph.
        edges: directed edges in a graph.
        batch: graphs per step, all of one size; `None` is one graph without a leading dim.
        hidden_layers: hidden layers in each MLP.
        hidden: their width, by default `latent`.
        dims: of space.
        history: velocities per particle in the input.
        types: kinds of particles.
        type_width: width of their embedding.
        clip: the global norm that gradients are clipped to; `None` does not clip.
        learning_rate: of the optimizer.
        optimizer: a name of `partir.zoo.training.OPTIMIZERS`.
        dtype: of inputs, parameters and activations.
        name: the name in reports.

    Raises:
        ValueError: for an unknown optimizer.
    """
    simulator = _Simulator(
        steps=steps,
        latent=latent,
        hidden=(latent if hidden is None else hidden,) * hidden_layers,
        types=types,
        type_width=type_width,
        dtype=dtype,
        batched=batch is not None,
    )

    def loss(batch: Mapping[str, jax.Array]) -> jax.Array:
        return jnp.mean((_accelerations(simulator, batch, dims) - batch["targets"]) ** 2)

    def shape(*sizes: int, dtype: str = dtype) -> jax.ShapeDtypeStruct:
        return jax.ShapeDtypeStruct(sizes if batch is None else (batch, *sizes), dtype)

    return training_example(
        loss,
        optimizer_of(optimizer, learning_rate, clip),
        {
            "nodes": shape(nodes, (history + 2) * dims),
            "types": shape(nodes, dtype="int32"),
            "edges": shape(edges, dims + 1),
            "senders": shape(edges, dtype="int32"),
            "receivers": shape(edges, dtype="int32"),
            "targets": shape(nodes, dims),
        },
        name=name or "gns",
        integer_bounds={"batch/types": types, "batch/senders": nodes, "batch/receivers": nodes},
    )


@dataclass(frozen=True)
class _Simulator:
    """The sizes that the modules below use; the fields are `gns`'s arguments with the defaults filled in."""

    steps: int
    latent: int
    hidden: tuple[int, ...]
    types: int
    type_width: int
    dtype: str
    batched: bool

    def rows_at(self, nodes: jax.Array, index: jax.Array) -> jax.Array:
        """The node row at one end of each edge, per graph: nodes [N, L] and index [E] to [E, L]."""

        def rows(nodes: jax.Array, index: jax.Array) -> jax.Array:
            return nodes[index]

        return (jax.vmap(rows) if self.batched else rows)(nodes, index)

    def sum_at(self, messages: jax.Array, index: jax.Array, nodes: int) -> jax.Array:
        """The sum of the messages to each node, per graph: messages [E, L] and index [E] to [N, L]."""

        def sums(messages: jax.Array, index: jax.Array) -> jax.Array:
            return jax.ops.segment_sum(messages, index, num_segments=nodes)

        return (jax.vmap(sums) if self.batched else sums)(messages, index)


class _Mlp(hk.Module):
    """Layers of these widths with ReLUs, the last one linear, followed by a layer norm."""

    def __init__(self, widths: tuple[int, ...], name: str, *, norm: bool = True) -> None:
        super().__init__(name=name)
        self._widths = widths
        self._norm = norm

    def __call__(self, x: jax.Array) -> jax.Array:
        for i, width in enumerate(self._widths):
            x = hk.Linear(width, name=f"linear_{i}")(jax.nn.relu(x) if i else x)
        return hk.LayerNorm(axis=-1, create_scale=True, create_offset=True, name="norm")(x) if self._norm else x


class _Encoder(hk.Module):
    """Maps the features of edges and nodes to the latent width."""

    def __init__(self, simulator: _Simulator, name: str) -> None:
        super().__init__(name=name)
        self._simulator = simulator

    def __call__(self, edges: jax.Array, nodes: jax.Array) -> tuple[jax.Array, jax.Array]:
        widths = (*self._simulator.hidden, self._simulator.latent)
        with jax.named_scope("edge-block"):
            edges = _Mlp(widths, "edge")(edges)
        with jax.named_scope("node-block"):
            nodes = _Mlp(widths, "node")(nodes)
        return edges, nodes


class _Step(hk.Module):
    """One step of message passing."""

    def __init__(self, simulator: _Simulator, name: str) -> None:
        super().__init__(name=name)
        self._simulator = simulator

    def __call__(
        self, edges: jax.Array, nodes: jax.Array, senders: jax.Array, receivers: jax.Array
    ) -> tuple[jax.Array, jax.Array]:
        simulator = self._simulator
        widths = (*simulator.hidden, simulator.latent)
        with jax.named_scope("edge-block"):
            ends = [simulator.rows_at(nodes, index) for index in (senders, receivers)]
            messages = _Mlp(widths, "edge")(jnp.concatenate([edges, *ends], axis=-1))
        with jax.named_scope("node-block"):
            received = simulator.sum_at(messages, receivers, nodes.shape[-2])
            change = _Mlp(widths, "node")(jnp.concatenate([nodes, received], axis=-1))
        return edges + messages, nodes + change


def _accelerations(simulator: _Simulator, batch: Mapping[str, jax.Array], dims: int) -> jax.Array:
    """The accelerations [N, D] that the network predicts for the nodes."""
    shape = simulator.types, simulator.type_width
    with level("types"):
        table = hk.get_parameter("embeddings", shape, simulator.dtype, init=hk.initializers.TruncatedNormal(1.0))
        nodes = jnp.concatenate([batch["nodes"], table[batch["types"]]], axis=-1)
    edges, nodes = _Encoder(simulator, "encoder")(batch["edges"], nodes)
    for i in range(simulator.steps):
        edges, nodes = _Step(simulator, f"step_{i}")(edges, nodes, batch["senders"], batch["receivers"])
    return _Mlp((*simulator.hidden, dims), "decoder", norm=False)(nodes)
