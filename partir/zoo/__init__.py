"""Example models: ordinary training steps in JAX, Haiku and Optax, with abstract arguments, so that nothing is allocated."""

from collections.abc import Callable, Mapping

from partir.zoo.example import Example
from partir.zoo.gns import gns
from partir.zoo.gpt import GPT2, gpt, partir_t32
from partir.zoo.gpt_decode import gpt_decode
from partir.zoo.llama import LLAMA, LLAMA3, llama
from partir.zoo.mlp import mlp
from partir.zoo.moe import GSHARD, SWITCH, moe
from partir.zoo.unet import DDPM, unet
from partir.zoo.vit import VIT, vit
from partir.zoo.wide_resnet import WRESNET, WRN, wide_resnet

MODELS: Mapping[str, Callable[..., Example]] = {
    "gns": gns,
    "gpt": gpt,
    "gpt_decode": gpt_decode,
    "llama": llama,
    "mlp": mlp,
    "moe": moe,
    "partir_t32": partir_t32,
    "unet": unet,
    "vit": vit,
    "wide_resnet": wide_resnet,
}
"""Every model by its name on the command line. Keyword arguments of the functions set sizes."""

__all__ = [
    "DDPM",
    "GPT2",
    "GSHARD",
    "LLAMA",
    "LLAMA3",
    "MODELS",
    "SWITCH",
    "VIT",
    "WRESNET",
    "WRN",
    "Example",
    "gns",
    "gpt",
    "gpt_decode",
    "llama",
    "mlp",
    "moe",
    "partir_t32",
    "unet",
    "vit",
    "wide_resnet",
]
