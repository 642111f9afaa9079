"""What a user asks of `partir.jit` beside the function: one record, handed from stage to stage."""

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
    """The options of `partir.jit` that say how to partition; how to trace is `frontend.trace.Options`.

    `mesh` is a mesh of JAX or of partir; `schedule` is None where one is to be searched; `in_shardings` and `out_shardings` are
    trees as the user gave them; `target` is the machine to price on (None: what the devices of the mesh are); `reduce_dtype` is
    the name of the dtype that sums over devices are made in (None: that of their values).
    """

    mesh: Any
    schedule: Schedule | None = None
    in_shardings: Any = None
    out_shardings: Any = None
    compiler_options: tuple[tuple[str, Any], ...] = ()
    target: Target | None = None
    reduce_dtype: str | None = None
