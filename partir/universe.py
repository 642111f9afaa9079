"""Registers partir's dialects and passes with xDSL (entry point `xdsl.universe`), for `xdsl-opt` and `partir opt`.

Our `stablehlo` dialect is left out: xdsl-jax's plug-in has one of that name, and xDSL refuses two. `partir opt` uses ours,
which has every op that JAX emits.
"""

from __future__ import annotations

from collections.abc import Callable

from xdsl.ir import Dialect
from xdsl.passes import ModulePass
from xdsl.universe import Universe


def _partir() -> Dialect:
    from partir.dialect.core import PARTIR

    return PARTIR


def _spmd() -> Dialect:
    from partir.dialect.spmd import SPMD

    return SPMD


def _sdy() -> Dialect:
    from partir.dialect.sdy import SDY

    return SDY


def _chlo() -> Dialect:
    from partir.dialect.chlo import CHLO

    return CHLO


def _simplify() -> type[ModulePass]:
    from partir.lowering.simplify import SimplifyCollectivesPass

    return SimplifyCollectivesPass


def _pass(name: str) -> Callable[[], type[ModulePass]]:
    def load() -> type[ModulePass]:
        from partir.coreir import passes

        found: type[ModulePass] = getattr(passes, name)
        return found

    return load


PASSES: dict[str, Callable[[], type[ModulePass]]] = {
    "partir-mesh": _pass("MeshPass"),
    "partir-tile": _pass("TilePass"),
    "partir-replicate": _pass("ReplicatePass"),
    "partir-pin": _pass("PinPass"),
    "partir-gather-once": _pass("GatherOncePass"),
    "partir-reduce-in": _pass("ReduceInPass"),
    "partir-prefer": _pass("PreferPass"),
    "partir-cut": _pass("CutPass"),
    "partir-erase-loops": _pass("EraseLoopsPass"),
    "partir-unroll": _pass("UnrollPass"),
    "partir-to-spmd": _pass("ToSpmdPass"),
    "spmd-simplify": _simplify,
}
"""Passes by their name in `-p`. Each is imported when it is first used, so that loading the plug-in is fast."""

PARTIR_UNIVERSE = Universe(
    all_dialects={"partir": _partir, "spmd": _spmd, "sdy": _sdy, "chlo": _chlo},
    all_passes=PASSES,
)
