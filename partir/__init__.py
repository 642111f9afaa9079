"""partir: partition JAX programs over device meshes - by tactics, with every collective explained, and run the result."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from partir import zoo
    from partir.api import Jitted, ReplanWarning, jit
    from partir.errors import (
        IRError,
        MeshError,
        NoEffectError,
        PartirError,
        PathError,
        ProgramError,
        StrategyError,
        TilingError,
        TransformError,
    )
    from partir.frontend.marks import constrain, scope, tag
    from partir.mesh import Mesh
    from partir.session import Session
    from partir.sharding.actions import Cut, Prefer, Replicate, Tile
    from partir.sharding.strategy import Strategy, load_strategy
    from partir.stages import Partitioned, Traced
    from partir.tactics import (
        FIRST_DIVISIBLE_DIM,
        DataParallel,
        EmbeddingParallel,
        Manual,
        Megatron,
        SequenceParallel,
        Whole,
        ZeRO,
    )

__version__ = "0.1.0"

__all__ = [
    "FIRST_DIVISIBLE_DIM",
    "Cut",
    "DataParallel",
    "EmbeddingParallel",
    "IRError",
    "Jitted",
    "Manual",
    "Megatron",
    "Mesh",
    "MeshError",
    "NoEffectError",
    "PartirError",
    "Partitioned",
    "PathError",
    "Prefer",
    "ProgramError",
    "ReplanWarning",
    "Replicate",
    "SequenceParallel",
    "Session",
    "Strategy",
    "StrategyError",
    "Tile",
    "TilingError",
    "Traced",
    "TransformError",
    "Whole",
    "ZeRO",
    "constrain",
    "jit",
    "load_strategy",
    "scope",
    "tag",
    "zoo",
]

_MODULES = {
    "partir.api": ("Jitted", "ReplanWarning", "jit"),
    "partir.errors": (
        "IRError",
        "MeshError",
        "NoEffectError",
        "PartirError",
        "PathError",
        "ProgramError",
        "StrategyError",
        "TilingError",
        "TransformError",
    ),
    "partir.frontend.marks": ("constrain", "scope", "tag"),
    "partir.mesh": ("Mesh",),
    "partir.session": ("Session",),
    "partir.sharding.actions": ("Cut", "Prefer", "Replicate", "Tile"),
    "partir.sharding.strategy": ("Strategy", "load_strategy"),
    "partir.stages": ("Partitioned", "Traced"),
    "partir.tactics": (
        "FIRST_DIVISIBLE_DIM",
        "DataParallel",
        "EmbeddingParallel",
        "Manual",
        "Megatron",
        "SequenceParallel",
        "Whole",
        "ZeRO",
    ),
}
_MODULE_OF = {name: module for module, names in _MODULES.items() for name in names}


def __getattr__(name: str) -> Any:
    """Public names are imported when they are first used: the command line answers before JAX is there."""
    if name == "zoo":
        return import_module("partir.zoo")
    if name not in _MODULE_OF:
        raise AttributeError(f"module 'partir' has no attribute {name!r}")
    value = globals()[name] = getattr(import_module(_MODULE_OF[name]), name)
    return value


def __dir__() -> list[str]:
    return [*__all__, "__version__"]
