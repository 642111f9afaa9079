"""partir: partition JAX programs over device meshes - by tactics, with every collective explained, and run the result."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from partir import search, targets, zoo
    from partir.api import Jitted, ReplanWarning, jit
    from partir.errors import (
        CompilerError,
        IRError,
        MemoryLimitError,
        MeshError,
        NoEffectError,
        PartirError,
        PathError,
        ProgramError,
        SearchError,
        StrategyError,
        TargetError,
        TilingError,
        TransformError,
    )
    from partir.frontend.marks import constrain, scope, tag
    from partir.mesh import Mesh
    from partir.session import Session
    from partir.sharding.actions import Action, Cut, GatherOnce, Pin, Prefer, ReduceIn, Replicate, Tile
    from partir.sharding.assignment import Assignment
    from partir.sharding.strategy import Strategy, load_strategy
    from partir.stages import Partitioned, Traced, diff
    from partir.tactics import (
        FIRST_DIVISIBLE_DIM,
        DataParallel,
        EdgeParallel,
        EmbeddingParallel,
        ExpertParallel,
        Manual,
        Megatron,
        MultiQuery,
        Search,
        SequenceParallel,
        Tactic,
        ZeRO,
    )
    from partir.verify.judge import Judgement, judge
    from partir.viz.verification import Verification

__version__ = "0.1.0"

__all__ = [
    "FIRST_DIVISIBLE_DIM",
    "Action",
    "Assignment",
    "CompilerError",
    "Cut",
    "DataParallel",
    "EdgeParallel",
    "EmbeddingParallel",
    "ExpertParallel",
    "GatherOnce",
    "IRError",
    "Jitted",
    "Judgement",
    "Manual",
    "Megatron",
    "MemoryLimitError",
    "Mesh",
    "MeshError",
    "MultiQuery",
    "NoEffectError",
    "PartirError",
    "Partitioned",
    "PathError",
    "Pin",
    "Prefer",
    "ProgramError",
    "ReduceIn",
    "ReplanWarning",
    "Replicate",
    "Search",
    "SearchError",
    "SequenceParallel",
    "Session",
    "Strategy",
    "StrategyError",
    "Tactic",
    "TargetError",
    "Tile",
    "TilingError",
    "Traced",
    "TransformError",
    "Verification",
    "ZeRO",
    "constrain",
    "diff",
    "jit",
    "judge",
    "load_strategy",
    "scope",
    "search",
    "tag",
    "targets",
    "zoo",
]

_MODULES = {
    "partir.api": ("Jitted", "ReplanWarning", "jit"),
    "partir.errors": (
        "CompilerError",
        "IRError",
        "MemoryLimitError",
        "MeshError",
        "NoEffectError",
        "PartirError",
        "PathError",
        "ProgramError",
        "SearchError",
        "StrategyError",
        "TargetError",
        "TilingError",
        "TransformError",
    ),
    "partir.frontend.marks": ("constrain", "scope", "tag"),
    "partir.mesh": ("Mesh",),
    "partir.verify.judge": ("Judgement", "judge"),
    "partir.session": ("Session",),
    "partir.sharding.actions": ("Action", "Cut", "GatherOnce", "Pin", "Prefer", "ReduceIn", "Replicate", "Tile"),
    "partir.sharding.assignment": ("Assignment",),
    "partir.sharding.strategy": ("Strategy", "load_strategy"),
    "partir.stages": ("Partitioned", "Traced", "diff"),
    "partir.tactics": (
        "FIRST_DIVISIBLE_DIM",
        "DataParallel",
        "EdgeParallel",
        "EmbeddingParallel",
        "ExpertParallel",
        "Manual",
        "Megatron",
        "MultiQuery",
        "Search",
        "SequenceParallel",
        "Tactic",
        "ZeRO",
    ),
    "partir.viz.verification": ("Verification",),
}
_MODULE_OF = {name: module for module, names in _MODULES.items() for name in names}


def __getattr__(name: str) -> Any:
    """Public names are imported when they are first used: the command line answers before JAX is there."""
    if name in ("search", "targets", "zoo"):
        return import_module(f"partir.{name}")
    if name not in _MODULE_OF:
        raise AttributeError(f"module 'partir' has no attribute {name!r}")
    value = globals()[name] = getattr(import_module(_MODULE_OF[name]), name)
    return value


def __dir__() -> list[str]:
    return [*__all__, "__version__"]
