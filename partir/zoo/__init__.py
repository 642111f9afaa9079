"""Models as examples: ordinary Haiku and Optax training steps with abstract arguments, nothing allocated."""

from collections.abc import Callable, Mapping

from partir.zoo.example import Example
from partir.zoo.gpt import GPT2, gpt, partir_t32
from partir.zoo.mlp import mlp

MODELS: Mapping[str, Callable[..., Example]] = {"gpt": gpt, "mlp": mlp, "partir_t32": partir_t32}
"""Every model by its name on the command line; keyword arguments set sizes."""

__all__ = ["GPT2", "MODELS", "Example", "gpt", "mlp", "partir_t32"]
