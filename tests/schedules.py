"""The schedules all tests mean by name, for a mesh with the axes "data" and "model": those of the issue's table and more."""

from collections.abc import Sequence

from partir import (
    FIRST_DIVISIBLE_DIM,
    DataParallel,
    EmbeddingParallel,
    Manual,
    Megatron,
    SequenceParallel,
    ZeRO,
)
from partir.tactics import Tactic

SCHEDULES: dict[str, Sequence[Tactic]] = {
    "batch": [DataParallel("data")],
    "megatron": [Megatron("model")],
    "both": [DataParallel("data"), Megatron("model")],
    "zero1": [DataParallel("data"), ZeRO("data", stage=1)],
    "zero2": [DataParallel("data"), ZeRO("data", stage=2)],
    "zero3": [DataParallel("data"), ZeRO("data", stage=3)],
    "both+zero2": [DataParallel("data"), Megatron("model"), ZeRO("data", stage=2)],
    "both+zero3": [DataParallel("data"), Megatron("model"), ZeRO("data", stage=3)],
    "both+zero3 once": [DataParallel("data"), Megatron("model"), ZeRO("data", stage=3, reshard_after_forward=False)],
    "megatron+sequence": [Megatron("model"), SequenceParallel("model")],
    "both+sequence": [DataParallel("data"), Megatron("model"), SequenceParallel("model")],
    "embedding": [EmbeddingParallel("model")],
    "batch+embedding": [DataParallel("data"), EmbeddingParallel("model")],
    "first": [Manual(FIRST_DIVISIBLE_DIM, axis="model")],
    "batch+first": [DataParallel("data"), Manual(FIRST_DIVISIBLE_DIM, axis="data")],
}
