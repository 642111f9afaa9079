"""The one vocabulary of tactics, search, logs and saved strategies: seven small decisions with stable addresses.

A value is addressed by its argument path (`params/mlp/w`), by its tag (`#residual.0`), else by phase, scope, op and ordinal
(`@forward:layer_0/attention-block/dot_general.2`), so that an address outlives the import it was made on.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from functools import cached_property
from typing import Any

from xdsl.ir import OpResult

from partir.dialect.core import TagOp
from partir.errors import PathError, StrategyError, error_text
from partir.program import no_match, origin_of
from partir.sharding.indices import ValueIndex
from partir.sharding.sums import dtype_name
from partir.sharding.tables import Tables


@dataclass(frozen=True)
class Tile:
    """Shard a dim of a value, and with it its dimension class, over a mesh axis."""

    value: str
    dim: int
    axis: str


@dataclass(frozen=True)
class Replicate:
    """Keep an argument (and the result it is paired with) replicated over a mesh axis, against all later claims."""

    value: str
    axis: str


@dataclass(frozen=True)
class Pin:
    """A dim of an argument lies at the boundary over exactly these axes, major first and separated by commas ("" for none),
    whatever the ops want: what they want otherwise is a reshard of the plan. It claims nothing; a `Tile` does."""

    value: str
    dim: int
    axes: str

    @property
    def names(self) -> tuple[str, ...]:
        """The axes, major first."""
        return tuple(self.axes.split(",")) if self.axes else ()


@dataclass(frozen=True)
class Prefer:
    """At the ops of a scope where the class of (value, dim) meets another that wants the axis, let this class have it."""

    scope: str
    value: str
    dim: int
    axis: str


@dataclass(frozen=True)
class Cut:
    """End a class at a value: what reads the value no longer shares the class of its dim."""

    value: str
    dim: int


@dataclass(frozen=True)
class GatherOnce:
    """Gather an argument (a parameter that is cut) once in a step, not in each phase that reads it, and keep it in between.
    What a loop reads of it is still gathered in the loop."""

    value: str


@dataclass(frozen=True)
class ReduceIn:
    """Sums over an axis of floating values are made in this dtype: the values are converted to it before the collective that
    adds them up, and the sum back after it. What a loop adds up in its rounds stays in the dtype that the program says. Of
    several for one axis the last counts. `dtype` is kept as its name."""

    axis: str
    dtype: str

    def __post_init__(self) -> None:
        object.__setattr__(self, "dtype", dtype_name(self.dtype))


Action = Tile | Replicate | Pin | Prefer | Cut | GatherOnce | ReduceIn
KINDS: Mapping[str, type[Action]] = {
    "tile": Tile,
    "replicate": Replicate,
    "pin": Pin,
    "prefer": Prefer,
    "cut": Cut,
    "gather_once": GatherOnce,
    "reduce_in": ReduceIn,
}
NAMES = {kind: name for name, kind in KINDS.items()}


def to_json(action: Action) -> dict[str, Any]:
    """An action as plain data."""
    return {"kind": NAMES[type(action)], **asdict(action)}


def from_json(record: Any) -> Action:
    """An action from plain data. Raises StrategyError for anything that is not one."""
    if not isinstance(record, dict):
        raise StrategyError(error_text(f"not an action: {record!r}", why="an action is an object with a kind"))
    fields: dict[str, Any] = {str(k): v for k, v in record.items()}  # type: ignore[reportUnknownVariableType]
    kind = KINDS.get(str(fields.pop("kind", None)))
    if kind is None:
        raise StrategyError(error_text(f"not an action: {record!r}", why=f"kind must be one of {', '.join(KINDS)}"))
    try:
        action = kind(**fields)
    except TypeError as error:
        raise StrategyError(error_text(f"not an action: {record!r}", why=str(error))) from None
    for name, value in asdict(action).items():
        expected = int if name == "dim" else str
        if not isinstance(value, expected) or isinstance(value, bool):
            raise StrategyError(
                error_text(f"not an action: {record!r}", why=f"{name} must be {expected.__name__}, not {value!r}")
            )
    return action


@dataclass(eq=False)
class Addresses:
    """The address of every value, and the way back."""

    tables: Tables

    @cached_property
    def names(self) -> list[str]:
        """By value index. A view shares its source's dims but keeps an address of its own."""
        signature = self.tables.program.signature
        names = [leaf.name for leaf in signature.arguments]
        counters: dict[str, int] = {}
        for value in self.tables.values[len(names) :]:
            op = value.op if isinstance(value, OpResult) else value.owner.parent_op()
            assert op is not None
            if isinstance(op, TagOp):
                stem = f"#{op.label.data}"
            else:
                origin = origin_of(op)
                scope = f"{origin.scope.data}/" if origin.scope.data else ""
                stem = f"@{origin.phase.data}:{scope}{op.name.rsplit('.', 1)[-1]}"
                if not isinstance(value, OpResult):
                    stem += f".region_{op.regions.index(value.owner.parent)}" if value.owner.parent is not None else ""
            counters[stem] = ordinal = counters.get(stem, -1) + 1
            names.append(f"{stem}.{ordinal}")
        return names

    @cached_property
    def _index(self) -> dict[str, ValueIndex]:
        return {name: ValueIndex(i) for i, name in reversed(list(enumerate(self.names)))}

    def __contains__(self, address: str) -> bool:
        return address in self._index

    def find(self, address: str) -> ValueIndex:
        """The value index of an address. Raises PathError, with the nearest addresses, when there is none."""
        found = self._index.get(address)
        if found is None:
            kind = "argument" if address[:1] not in "@#" else "value"
            known = self.names[: self.tables.argument_count] if kind == "argument" else self.names
            raise PathError(no_match(address, [(name,) for name in known], kind))
        return found

    def tagged(self, name: str) -> list[ValueIndex]:
        """The values a tag of this name stands on."""
        return [
            ValueIndex(i) for i, text in enumerate(self.names) if text.startswith("#") and text[1:].rsplit(".", 1)[0] == name
        ]


def describe(actions: Iterable[Action]) -> str:
    """Actions one per line, as a reader says them."""
    return "\n".join(str(action) for action in actions)
