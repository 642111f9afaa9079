"""Interactive sessions: decide step by step, undo, and take the result as a `Partitioned` or as Python code."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cached_property
from typing import Any, Generic, Protocol, TypeVar

from partir.cost.target import Target
from partir.errors import NoEffectError, PartirError, error_text
from partir.search import Searcher
from partir.sharding.actions import Action, GatherOnce, Pin, Prefer, ReduceIn, Replicate, Tile
from partir.sharding.assignment import Assignment
from partir.sharding.classes import ClassInfo
from partir.sharding.strategy import Strategy
from partir.tactics import Search


class Decided(Protocol):
    """What a session needs to know of a partitioned function."""

    @property
    def assignment(self) -> Assignment:
        """The decisions."""
        ...

    @property
    def target(self) -> Target:
        """The machine to price on. Raises TargetError if there is none."""
        ...


D = TypeVar("D", bound=Decided)


class Session(Generic[D]):
    """Decisions on one traced function, one after the other. Every method returns the session, so that calls can be chained.

    A step that changes nothing, or names something that does not exist, raises and leaves the session unchanged. `partition`
    is the function that partitions by a schedule.
    """

    def __init__(self, partition: Callable[[Sequence[Strategy]], D]) -> None:
        self._partition = partition
        self._steps: list[tuple[Action, ...]] = []
        self._undone: list[tuple[Action, ...]] = []

    def tile(self, what: str | ClassInfo, dim: int | None = None, axis: str | None = None) -> Session[D]:
        """Shard a dim of the arguments that a path pattern names, or a class of `Traced.classes`, over a mesh axis."""
        axis = self._axis(axis)
        if isinstance(what, ClassInfo):
            name, position = what.arguments[0]
            return self._do(Tile(name, position, axis))
        if dim is None:
            raise PartirError(error_text(f"tile({what!r}) names no dim", hint=f"tile({what!r}, 0, {axis!r})"))
        return self._do(*(Tile(name, dim, axis) for name in self._names(what)))

    def replicate(self, path: str, axis: str | None = None) -> Session[D]:
        """Keep the arguments that a pattern names replicated over a mesh axis, whatever later steps do."""
        return self._do(*(Replicate(name, self._axis(axis)) for name in self._names(path)))

    def pin(self, path: str, dim: int, *axes: str) -> Session[D]:
        """Shard a dim of the arguments that a pattern names over exactly these axes (none: do not shard it), however its uses
        are sharded."""
        return self._do(*(Pin(name, dim, ",".join(axes)) for name in self._names(path)))

    def gather_once(self, path: str) -> Session[D]:
        """Gather the parameters that a pattern names once per step instead of once per phase, and keep them in between."""
        return self._do(*(GatherOnce(name) for name in self._names(path)))

    def reduce_in(self, dtype: Any, axis: str | None = None) -> Session[D]:
        """Reduce floating-point values over a mesh axis in this dtype."""
        return self._do(ReduceIn(self._axis(axis), dtype))

    def prefer(self, site: str, class_: ClassInfo | tuple[str, int], axis: str | None = None) -> Session[D]:
        """At the ops of a scope (`site`) where several classes claim an axis, give it to this class."""
        name, dim = class_.arguments[0] if isinstance(class_, ClassInfo) else class_
        return self._do(Prefer(site, name, dim, self._axis(axis)))

    def search(
        self,
        axes: str | Sequence[str] | None = None,
        algorithm: Searcher | None = None,
        scopes: Sequence[str] | None = None,
    ) -> Session[D]:
        """Decide by search on some axes (default: all), after the steps so far. Raises TargetError without a target."""
        so_far = self._partitioned(self._steps)
        chosen = so_far.assignment.mesh.names if axes is None else axes
        return self._do(*Search(chosen, algorithm, scopes).actions_on(so_far.assignment, so_far.target))

    def undo(self) -> Session[D]:
        """Take back the last step, if there is one."""
        if self._steps:
            self._undone.append(self._steps.pop())
        return self

    def redo(self) -> Session[D]:
        """Repeat the step that was undone last, unless a new step was taken since."""
        if self._undone:
            self._steps.append(self._undone.pop())
        return self

    @property
    def partitioned(self) -> D:
        """The function with the decisions so far."""
        return self._partitioned(self._steps)

    def code(self) -> str:
        """The decisions as a schedule in Python, to paste into a script."""
        actions = [action for step in self._steps for action in step]
        return "\n".join(["[", *(f"    partir.{action!r}," for action in actions), "]"])

    def _partitioned(self, steps: list[tuple[Action, ...]]) -> D:
        actions = [action for step in steps for action in step]
        return self._partition([Strategy.of(self._start, actions)] if actions else [])

    @cached_property
    def _start(self) -> Assignment:
        """The assignment before any step."""
        return self._partition([]).assignment

    def _do(self, *actions: Action) -> Session[D]:
        before = self._partitioned(self._steps).assignment
        after = before.apply(*actions)
        if after.same_effect(before) and not all(isinstance(a, Replicate) for a in actions):
            raise NoEffectError(
                error_text(
                    f"{', '.join(map(str, actions[:3]))} changes nothing",
                    why="; ".join(map(str, after.claims.undivided[len(before.claims.undivided) :])) or "it is decided already",
                )
            )
        self._steps.append(actions)
        self._undone.clear()
        return self

    def _axis(self, axis: str | None) -> str:
        names = self._start.mesh.names
        if axis is None and len(names) == 1:
            return names[0]
        if axis is None:
            raise PartirError(error_text("no mesh axis named", why=f"the mesh has {', '.join(names)}"))
        return axis

    def _names(self, pattern: str) -> list[str]:
        addresses = self._start.structure.addresses
        if pattern[:1] in "#@":
            return [addresses.names[addresses.find(pattern)]]
        signature = self._start.structure.program.signature
        return [signature.arguments[i].name for i in signature.select(pattern)]

    def __repr__(self) -> str:
        return f"Session({len(self._steps)} steps): {self.partitioned!r}"
