"""The zoo at small size, each model with schedules that suit it, on a mesh data=4, model=2: what tables about it go through."""

from collections.abc import Callable, Mapping, Sequence

from schedules import SCHEDULES

from partir import DataParallel, EdgeParallel, ExpertParallel, Megatron, MultiQuery, ZeRO, zoo
from partir.tactics import Tactic
from partir.zoo import Example

_DECODE = {"layers": 2, "d_model": 32, "heads": 8, "vocab": 64, "seq": 16, "batch": 8, "steps": 5}

MODELS: Mapping[str, Callable[[], Example]] = {
    "mlp": lambda: zoo.mlp((16, 32, 32, 8), batch=16),
    "mlp, batch 64": lambda: zoo.mlp((16, 32, 32, 8), batch=64),
    "gpt": lambda: zoo.gpt(layers=1, d_model=32, heads=4, vocab=64, seq=8, batch=8),
    "llama": lambda: zoo.llama(
        layers=3, d_model=32, heads=8, kv_heads=4, d_ff=48, vocab=64, seq=8, batch=8, compute_dtype=None
    ),
    "vit": lambda: zoo.vit(layers=1, d_model=32, heads=4, d_ff=64, patch=4, image=8, classes=8, batch=8, optimizer="momentum"),
    "moe": lambda: zoo.moe(2, d_model=32, heads=4, experts=8, vocab=64, seq=8, batch=8),
    "gns": lambda: zoo.gns(steps=2, latent=8, nodes=16, edges=32, dims=2),
    "wide_resnet": lambda: zoo.wide_resnet(depth=10, width=2, channels=8, classes=8, image=8, batch=8),
    "wide_resnet, batch 128": lambda: zoo.wide_resnet(depth=10, width=2, channels=8, classes=8, image=8, batch=128),
    "unet": lambda: zoo.unet(8, (1, 2), 1, image=8, batch=8, attention_at=(4,), heads=2, groups=4, optimizer="momentum"),
    "gpt_decode": lambda: zoo.gpt_decode(**_DECODE),
    "gpt_decode, one key head": lambda: zoo.gpt_decode(**_DECODE, kv_heads=1),
}

_DATA, _MODEL, _ZERO = DataParallel("data"), Megatron("model"), ZeRO("data", stage=3)
_EXPERTS, _EDGES = [_DATA, ExpertParallel("data"), _MODEL], EdgeParallel("data")

CASES: Mapping[tuple[str, str], Sequence[Tactic]] = {
    **{
        (model, schedule): SCHEDULES[schedule]
        for model, schedules in {
            "mlp": ("both", "both+zero3"),
            "mlp, batch 64": ("both+zero3",),
            "gpt": ("both", "both+zero3", "both+sequence"),
            "llama": ("both", "both+zero2", "both+zero3"),
            "vit": ("both", "both+zero3", "both+sequence"),
            "moe": ("both+sequence",),
        }.items()
        for schedule in schedules
    },
    ("moe", "expert+megatron"): _EXPERTS,
    ("moe", "expert+megatron+zero3"): [*_EXPERTS, _ZERO],
    ("gns", "edges"): [_EDGES],
    ("gns", "edges+nodes+zero3"): [_EDGES, DataParallel("data", inputs="batch/nodes"), _ZERO],
    ("wide_resnet", "batch+channels"): [_DATA, _MODEL],
    ("wide_resnet", "zero3"): [_DATA, _ZERO],
    ("wide_resnet, batch 128", "zero3"): [_DATA, _ZERO],
    ("unet", "batch+channels"): [_DATA, _MODEL],
    ("unet", "batch+channels+zero3"): [_DATA, _MODEL, _ZERO],
    ("gpt_decode", "both"): [_DATA, _MODEL],
    ("gpt_decode, one key head", "both+multi-query"): [_DATA, _MODEL, MultiQuery("model")],
    ("gpt_decode, one key head", "first"): SCHEDULES["first"],
}
