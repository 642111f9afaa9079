"""Makes a training step from a loss and an optimizer; all models of the zoo share it."""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping
from contextlib import contextmanager
from typing import Any

import haiku as hk
import jax
import jax.numpy as jnp
import optax
from haiku.experimental import name_scope

from partir.zoo.example import Example

OPTIMIZERS: Mapping[str, Callable[[float], optax.GradientTransformation]] = {
    "adam": optax.adam,
    "adamw": optax.adamw,
    "momentum": lambda learning_rate: optax.sgd(learning_rate, momentum=0.9),
    "sgd": optax.sgd,
}
"""Optimizers by name; each is made from a learning rate."""


def optimizer_of(name: str, learning_rate: float, clip: float | None = None) -> optax.GradientTransformation:
    """An optimizer by name. If `clip` is given, the gradients' global norm is clipped to it first.

    Raises ValueError for a name that is not in `OPTIMIZERS`.
    """
    if name not in OPTIMIZERS:
        raise ValueError(f'no optimizer "{name}"\n  try     one of {", ".join(OPTIMIZERS)}')
    optimizer = OPTIMIZERS[name](learning_rate)
    return optimizer if clip is None else optax.chain(optax.clip_by_global_norm(clip), optimizer)


@contextmanager
def level(name: str) -> Generator[None]:
    """A context that adds a level to the paths of Haiku's parameters and to JAX's named scopes."""
    with name_scope(name), jax.named_scope(name):
        yield


def cross_entropy(logits: jax.Array, targets: jax.Array) -> jax.Array:
    """The mean of -log p(target) in nats, for logits [..., C] and targets [...] in [0, C); in at least 32 bits."""
    logits = logits.astype(jnp.promote_types(logits.dtype, jnp.float32))
    one_hot = jax.nn.one_hot(targets, logits.shape[-1], dtype=logits.dtype)
    return jnp.mean(-jnp.sum(one_hot * jax.nn.log_softmax(logits), axis=-1))


def training_example(
    loss: Callable[[Mapping[str, jax.Array]], jax.Array],
    optimizer: optax.GradientTransformation,
    batch: Mapping[str, jax.ShapeDtypeStruct],
    *,
    name: str,
    integer_bounds: Mapping[str, int],
) -> Example:
    """A training step of a Haiku model.

    Args:
        loss: maps a batch to a scalar; written with Haiku modules (it is transformed here), without random numbers.
        optimizer: its state is the step's second argument.
        batch: shapes and dtypes of the step's third argument.
        name: the name in reports.
        integer_bounds: exclusive upper bounds of the batch's integers, by path from the argument ("batch/tokens").

    Returns:
        An Example whose function is `train_step(params, opt_state, batch) -> (params, opt_state, loss)` and donates
        the first two.
    """
    model = hk.without_apply_rng(hk.transform(loss))

    def init(key: jax.Array) -> Any:
        return model.init(key, jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), batch))

    return step_example(model.apply, init, optimizer, batch, name=name, integer_bounds=integer_bounds)


def step_example(
    loss: Callable[[Any, Any], jax.Array],
    init: Callable[[jax.Array], Any],
    optimizer: optax.GradientTransformation,
    batch: Mapping[str, jax.ShapeDtypeStruct],
    *,
    name: str,
    integer_bounds: Mapping[str, int],
) -> Example:
    """A training step of a model that is two functions `loss` and `init`, of any library or none.

    Args:
        loss: maps (parameters, batch) to a scalar.
        init: maps a PRNG key to the parameters.
        optimizer, batch, name, integer_bounds: as in `training_example`.
    """

    def train_step(params: Any, opt_state: Any, batch: Any) -> tuple[Any, Any, jax.Array]:
        value, gradients = jax.value_and_grad(loss)(params, batch)
        with jax.named_scope("optimizer"):
            updates, opt_state = optimizer.update(gradients, opt_state, params)
            params = optax.apply_updates(params, updates)
        return params, opt_state, value

    def start(key: jax.Array) -> tuple[Any, Any]:
        params = init(key)
        return params, optimizer.init(params)

    params, opt_state = jax.eval_shape(start, jax.random.key(0))
    return Example(train_step, (params, opt_state, dict(batch)), (0, 1), name=name, init=start, integer_bounds=integer_bounds)
