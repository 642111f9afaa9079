"""The options of `partir.jit` that say how to partition, as one record that is passed from stage to stage."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from partir.cost.target import Target
from partir.sharding.actions import Action
from partir.sharding.strategy import Strategy
from partir.tactics import Tactic

Schedule = Sequence[Tactic | Strategy | Action]


@dataclass(frozen=True, eq=False, kw_only=True)
class Setup:
    """The options of `partir.jit` that say how to partition. (Those that say how to trace are `frontend.trace.Options`.)

    `mesh` is a mesh of JAX or of partir. `schedule` is None if one is to be searched for. `in_shardings` and `out_shardings`
    are trees as the user gave them. `target` is the machine to price on (None: the devices of the mesh). `reduce_dtype` is the
    name of the dtype that values are reduced over devices in (None: their own).
    """

    mesh: Any
    schedule: Schedule | None = None
    in_shardings: Any = None
    out_shardings: Any = None
    compiler_options: tuple[tuple[str, Any], ...] = ()
    target: Target | None = None
    reduce_dtype: str | None = None
