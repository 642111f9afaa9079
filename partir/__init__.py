"""partir: partition JAX programs over device meshes - by tactics, with every collective explained, and run the result."""

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
