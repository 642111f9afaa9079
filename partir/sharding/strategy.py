"""A strategy: the ordered actions with the mesh - small, plain data, replayable on the same function imported again."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from partir.errors import StrategyError, error_text
from partir.mesh import Mesh
from partir.program import Program
from partir.sharding.actions import Action, ReduceIn, from_json, to_json
from partir.sharding.assignment import Assignment

VERSION = 1
FORMAT = "partir-strategy"

Named = tuple[str, int, str]
"""Path, rank and dtype of one argument or result."""


@dataclass(frozen=True)
class Strategy:
    """What was decided for one function: `actions` in order, on `mesh`.

    `arguments` and `results` (path, rank, dtype) identify the function; sizes may differ where it is used again. `model` are
    the words of the command line that make it again (`("gpt", "layers=4")`), where it was made there. Works as an item of a
    schedule.
    """

    name: str
    mesh: Mesh
    actions: tuple[Action, ...]
    arguments: tuple[Named, ...]
    results: tuple[Named, ...]
    model: tuple[str, ...] = field(default=(), compare=False)

    @classmethod
    def of(cls, assignment: Assignment, actions: Sequence[Action] | None = None) -> Strategy:
        """The strategy of an assignment (of all its actions, or of some of them)."""
        program = assignment.structure.program
        arguments, results = _named(program)
        own = assignment.actions if actions is None else tuple(actions)
        return cls(program.name, assignment.mesh, own, arguments, results)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the strategy as JSON, all of it or nothing. Raises StrategyError where nothing can be written."""
        target = Path(path)
        text = json.dumps(self.to_json(), indent=1) + "\n"
        temporary = target.with_name(f".{target.name}.{os.getpid()}")
        try:
            temporary.write_text(text, encoding="utf-8")
            os.replace(temporary, target)
        except OSError as error:
            raise StrategyError(
                error_text(f"cannot write the strategy file {os.fspath(path)}", why=error.strerror or "")
            ) from None
        finally:
            with suppress(OSError):
                temporary.unlink()

    def to_json(self) -> dict[str, Any]:
        """The strategy as plain data, which `save` writes."""
        return {
            "format": FORMAT,
            "version": VERSION,
            "name": self.name,
            "mesh": [[name, size] for name, size in self.mesh.axes],
            "actions": [to_json(action) for action in self.actions],
            "arguments": [list(entry) for entry in self.arguments],
            "results": [list(entry) for entry in self.results],
            "model": list(self.model),
        }

    def suits(self, program: Program) -> bool:
        """Whether `program` is the function this was made for, whatever its sizes."""
        return (self.arguments, self.results) == _named(program)

    def check(self, program: Program) -> None:
        """Raise StrategyError, naming what differs, unless `program` is the function this was made for."""
        arguments, results = _named(program)
        differences = _differences("argument", self.arguments, arguments) + _differences("result", self.results, results)
        if differences:
            shown = "; ".join(differences[:6]) + (f"; and {len(differences) - 6} more" if len(differences) > 6 else "")
            raise StrategyError(
                error_text(
                    f"this strategy was made for another program than {program.name}",
                    where=f"a strategy for {self.name} with {len(self.arguments)} arguments",
                    why=shown,
                    hint="partition this program anew, or load the strategy that belongs to it",
                )
            )

    def actions_for(self, assignment: Assignment) -> Sequence[Action]:
        """The actions, checked against the program and mesh they are replayed on."""
        self.check(assignment.structure.program)
        for axis in self.mesh.names:
            assignment.mesh.check(axis)
        sums = {action.axis: action.dtype for action in self.actions if isinstance(action, ReduceIn)}
        known = assignment.summed_in
        said = all(known.get(axis) == dtype for axis, dtype in sums.items())  # of those of one axis the last counts
        return [a for a in self.actions if (not said if isinstance(a, ReduceIn) else a not in assignment.actions)]


def load_strategy(path: str | os.PathLike[str]) -> Strategy:
    """Read a strategy that `Strategy.save` wrote. Raises StrategyError for a file that is not one, or is damaged."""
    try:
        text = Path(path).read_text(encoding="utf-8")
    except FileNotFoundError:
        raise StrategyError(error_text(f"no strategy file {os.fspath(path)}")) from None
    except (OSError, UnicodeDecodeError) as error:
        raise StrategyError(error_text(f"cannot read the strategy file {os.fspath(path)}", why=str(error))) from None
    try:
        record = json.loads(text)
    except RecursionError:
        raise StrategyError(error_text(f"the strategy file {os.fspath(path)} is damaged", why="it nests too deeply")) from None
    except json.JSONDecodeError as error:
        raise StrategyError(
            error_text(
                f"the strategy file {os.fspath(path)} is damaged",
                where=f"line {error.lineno}, column {error.colno} of {len(text)} characters",
                why=f"it is not JSON: {error.msg}",
                hint="it may have been cut short: save it again",
            )
        ) from None
    return from_record(record, os.fspath(path))


def from_record(record: Any, path: str) -> Strategy:
    """A strategy from the data of its file; `path` is what messages call it. Raises StrategyError where it is none."""

    def refuse(why: str) -> StrategyError:
        return StrategyError(error_text(f"{path} is not a strategy file", why=why, hint="a file that Strategy.save wrote"))

    if not isinstance(record, dict) or record.get("format") != FORMAT:  # type: ignore[reportUnknownMemberType]
        raise refuse(f'it has no "format": "{FORMAT}"')
    fields: dict[str, Any] = {str(k): v for k, v in record.items()}  # type: ignore[reportUnknownVariableType]
    if fields.get("version") != VERSION:
        raise refuse(f"it is of version {fields.get('version')!r}, this partir reads version {VERSION}")
    missing = [key for key in ("name", "mesh", "actions", "arguments", "results") if key not in fields]
    if missing:
        raise refuse(f"{', '.join(missing)} missing")
    try:
        mesh = Mesh([(str(name), size) for name, size in fields["mesh"]])
        named = [
            tuple((str(path), int(rank), str(dtype)) for path, rank, dtype in fields[key]) for key in ("arguments", "results")
        ]
    except (TypeError, ValueError) as error:
        raise refuse(f"mesh, arguments or results are malformed: {error}") from None
    model = fields.get("model", [])
    for key, value in (("actions", fields["actions"]), ("model", model)):
        if not isinstance(value, list):
            raise refuse(f"{key} is not a list")
    actions = tuple(from_json(item) for item in fields["actions"])  # type: ignore[reportUnknownVariableType]
    return Strategy(
        name=str(fields["name"]),
        mesh=mesh,
        actions=actions,
        arguments=named[0],
        results=named[1],
        model=tuple(map(str, model)),
    )


def _named(program: Program) -> tuple[tuple[Named, ...], tuple[Named, ...]]:
    signature = program.signature
    return (
        tuple((leaf.name, len(leaf.shape), leaf.dtype) for leaf in signature.arguments),
        tuple((leaf.name, len(leaf.shape), leaf.dtype) for leaf in signature.results),
    )


def _differences(what: str, then: Sequence[Named], now: Sequence[Named]) -> list[str]:
    before, after = {e[0]: e for e in then}, {e[0]: e for e in now}
    found = [f"{what} {name} is gone" for name in before if name not in after]
    found += [f"{what} {name} is new" for name in after if name not in before]
    for name, entry in before.items():
        other = after.get(name)
        if other is not None and other != entry:
            found.append(f"{what} {name} was {entry[2]} of {entry[1]} dims and is {other[2]} of {other[1]}")
    return found
