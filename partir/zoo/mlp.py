"""A multilayer perceptron for classification, with its training step."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import haiku as hk
import jax

from partir.zoo.example import Example
from partir.zoo.training import cross_entropy, optimizer_of, training_example


def mlp(
    widths: Sequence[int] = (784, 512, 512, 10),
    batch: int = 64,
    *,
    bias: bool = True,
    clip: float | None = None,
    learning_rate: float = 0.1,
    optimizer: str = "momentum",
    dtype: str = "float32",
    name: str | None = None,
) -> Example:
    """A training step of a ReLU classifier; the default widths are those of MNIST.

    With W = `widths` and B = `batch`: `batch = {"inputs": dtype[B, W[0]], "targets": int32[B]}`, targets in [0, W[-1]),
    parameters `layer_i/{w,b}` of shapes [W[i], W[i+1]] and [W[i+1]]. The loss is the mean cross entropy in nats.

    >>> step = mlp(widths=(16, 32, 8), batch=4)
    >>> {path: leaf["w"].shape for path, leaf in step.args[0].items()}
    {'layer_0': (16, 32), 'layer_1': (32, 8)}

    Args:
        widths: features of the input, of each hidden layer, and the number of classes last.
        batch: examples per step.
        bias: whether layers have a bias.
        clip: the global norm that gradients are clipped to; `None` does not clip.
        learning_rate: of the optimizer.
        optimizer: a name of `partir.zoo.training.OPTIMIZERS` ("momentum" is SGD with momentum 0.9).
        dtype: of inputs and parameters.
        name: the name in reports.

    Raises:
        ValueError: for fewer than two widths, or an unknown optimizer.
    """
    if len(widths) < 2:
        raise ValueError(
            f"cannot build a perceptron from widths {tuple(widths)}\n"
            "  why     it needs the input's features and the number of classes\n"
            "  try     mlp(widths=(784, 512, 10))"
        )

    def loss(batch: Mapping[str, jax.Array]) -> jax.Array:
        x = batch["inputs"]
        for i, width in enumerate(widths[1:]):
            x = hk.Linear(width, with_bias=bias, name=f"layer_{i}")(jax.nn.relu(x) if i else x)
        return cross_entropy(x, batch["targets"])

    return training_example(
        loss,
        optimizer_of(optimizer, learning_rate, clip),
        {
            "inputs": jax.ShapeDtypeStruct((batch, widths[0]), dtype),
            "targets": jax.ShapeDtypeStruct((batch,), "int32"),
        },
        name=name or "mlp",
        integer_bounds={"batch/targets": widths[-1]},
    )
