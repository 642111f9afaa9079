"""ZeRO (Rajbhandari et al. 2020): optimizer state, gradients and parameters sharded over the data axis."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from partir.errors import NoEffectError, ProgramError, error_text
from partir.sharding.actions import Action, GatherOnce, ReduceIn, Replicate, Tile
from partir.sharding.assignment import Assignment
from partir.sharding.indices import ClassId, ValueIndex
from partir.sharding.roles import accumulators_of
from partir.sharding.sums import dtype_name
from partir.tactics.tactic import holds

ENOUGH = 0.99
"""The share of parameter bytes after which a class that shards only what is left is not worth its collectives."""


@dataclass(frozen=True)
class ZeRO:
    """Shard state over `axis`, on top of data parallelism: the classes that together cover the parameters.

    stage 3 (FSDP)  parameters are sharded: gathered once in each phase that uses them, gradients reduce-scattered; without
                    `reshard_after_forward`, gathered once in a step and kept until the backward pass (a gather less, for the
                    memory of all of them)
    stage 2         parameters stay replicated: gradients reduce-scattered, new parameters gathered at the end of the step
    stage 1         as stage 2, and gradients that are accumulated over steps stay replicated, too

    Classes are taken by the parameter bytes they newly shard (in a transformer the residual width covers nearly all) until
    99 % are covered or none divides; those of repeated layers together. `params` limits it to parameters that match these
    patterns. `reduce_dtype` is the dtype that sums over `axis` are made in, as in `DataParallel`. (`reshard_after_forward` and
    `reduce_dtype` are PyTorch FSDP's names for them.)
    """

    axis: str
    stage: Literal[1, 2, 3]
    params: str | Sequence[str] | None = None
    reshard_after_forward: bool = True
    reduce_dtype: Any = None

    def __post_init__(self) -> None:
        if self.reduce_dtype is not None:
            object.__setattr__(self, "reduce_dtype", dtype_name(self.reduce_dtype))

    def actions(self, assignment: Assignment) -> Sequence[Action]:
        assignment.mesh.check(self.axis)
        if self.stage not in (1, 2, 3):
            raise ProgramError(error_text(f"there is no ZeRO stage {self.stage!r}", hint="stage=1, 2 or 3"))
        if self.stage != 3 and not self.reshard_after_forward:
            raise ProgramError(
                error_text(
                    f"{self!r} has nothing to reshard after forward",
                    why="before stage 3 parameters stay replicated",
                    hint="stage=3, or leave reshard_after_forward out",
                )
            )
        signature = assignment.structure.program.signature
        parameters = list(assignment.roles.parameters)
        others: list[ValueIndex] = []
        if self.params is not None:
            patterns = [self.params] if isinstance(self.params, str) else list(self.params)
            named = {i for pattern in patterns for i in signature.select(pattern)}
            others = [i for i in parameters if i not in named]
            parameters = [i for i in parameters if i in named]
        held = self._held(assignment, parameters)
        chosen, covered = self._cover(assignment, parameters if not held else ())
        if not chosen:
            raise NoEffectError(
                error_text(
                    f"{self!r} finds no parameter to shard",
                    why=f"of {len(parameters)} parameters none has a free dim that divides by "
                    f'the {assignment.mesh.size_of(self.axis)} devices of "{self.axis}"',
                    hint="another axis, or sizes that divide",
                ),
                held,
            )
        pinned = list(others)
        if self.stage < 3:
            pinned += sorted(covered)
        if self.stage == 1:
            pinned += accumulators_of(assignment.structure)
        pins: list[Action] = [Replicate(signature.arguments[i].name, self.axis) for i in pinned]
        tiles = [Tile(signature.arguments[i].name, dim, self.axis) for i, dim in chosen]
        once = () if self.reshard_after_forward else parameters
        sums = () if self.reduce_dtype is None else (ReduceIn(self.axis, self.reduce_dtype),)
        return [*sums, *pins, *tiles, *(GatherOnce(signature.arguments[i].name) for i in once)]

    def _held(self, assignment: Assignment, parameters: Sequence[ValueIndex]) -> list[Tile]:
        """A tile for each value that this stage shards, where all of them have the axis already."""
        leaves = assignment.structure.program.signature.arguments
        wanted = list(parameters)
        if self.stage < 3:
            whole = {*assignment.roles.parameters, *(accumulators_of(assignment.structure) if self.stage == 1 else ())}
            wanted = [state for state, _ in assignment.structure.tables.state if leaves[state].shape and state not in whole]
            if any(assignment.has_axis(parameter, self.axis) for parameter in parameters):
                return []
        tiles = [[Tile(leaves[a].name, dim, self.axis) for dim in range(len(leaves[a].shape))] for a in wanted]
        found = [next((tile for tile in own if holds(assignment, tile)), None) for own in tiles]
        return [tile for tile in found if tile is not None] if None not in found else []

    def _cover(
        self, assignment: Assignment, parameters: Sequence[ValueIndex]
    ) -> tuple[list[tuple[ValueIndex, int]], set[ValueIndex]]:
        """Classes as (parameter, dim), greedily by the bytes they newly shard; and the parameters they shard."""
        tables = assignment.structure.tables
        options: dict[ClassId, dict[ValueIndex, int]] = {}
        for dim in assignment.dims_of(p for p in parameters if not assignment.has_axis(p, self.axis)):
            if assignment.can_tile(dim.class_, self.axis):
                options.setdefault(dim.class_, {}).setdefault(dim.value, dim.dim)
        total = sum(tables.bytes_of[p] for p in parameters)
        covered: set[ValueIndex] = set()
        chosen: list[tuple[ValueIndex, int]] = []
        while options and sum(tables.bytes_of[p] for p in covered) < ENOUGH * total:
            gain = {c: sum(tables.bytes_of[p] for p in own if p not in covered) for c, own in options.items()}
            best = max(gain, key=lambda c: (gain[c], -c))
            if not gain[best]:
                break
            for class_ in sorted({best, *self._repeated(assignment, best, options)}):
                own = options.pop(class_)
                chosen.append(next(iter(own.items())))
                covered |= set(own)
        return sorted(chosen, key=lambda tile: self._is_inner(assignment, *tile)), covered

    @staticmethod
    def _is_inner(assignment: Assignment, parameter: ValueIndex, dim: int) -> bool:
        """Whether the class of a dim is an inner part of some other (the width in the input of a matrix that reads three
        vectors side by side). No PartitionSpec can say that, so it comes last: a class that can be said then has the matrix."""
        class_ = assignment.class_of(parameter, dim)
        return class_ is not None and any(part > 0 for _, _, part in assignment.classes.arguments_by_class[class_])

    @staticmethod
    def _repeated(assignment: Assignment, class_: ClassId, others: Iterable[ClassId]) -> Sequence[ClassId]:
        """The other classes that are the same decision in repeated layers. Groups are not looked for where sizes tell."""
        sizes = assignment.classes.size
        alike = [other for other in others if other != class_ and sizes[other] == sizes[class_]]
        group = assignment.group_of.get(class_) if alike else None
        return [other for other in alike if group is not None and other in group.classes]
