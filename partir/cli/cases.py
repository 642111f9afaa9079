"""Reads a sweep file as cases: all combinations of models, sizes, meshes, targets and schedules, each with a stable name."""

from __future__ import annotations

import hashlib
import itertools
import json
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from partir.cli.inputs import mesh_of, near, schedule_of
from partir.errors import PartirError, ProgramError, error_text

EXAMPLE = """
[[models]]
name = "gpt"
layers = [2, 4]               # a list is swept

[sweep]
meshes = ["data=4,model=2"]   # or: devices = 8 and axes = ["data", "model"] for every shape
targets = ["tpu_v3"]

[schedules]
batch = "DataParallel('data')"
found = "Search(('data', 'model'))"
"""


@dataclass(frozen=True)
class Case:
    """One row of a sweep's table: a model with settings, a mesh, a target, and a schedule (its name, and its text)."""

    model: str
    settings: tuple[tuple[str, Any], ...]
    mesh: str
    target: str
    schedule: str
    tactics: str

    @property
    def key(self) -> str:
        """A name for files. It depends on this case only, so that results survive changes of the sweep file."""
        return hashlib.sha256(json.dumps(asdict(self), sort_keys=True).encode()).hexdigest()[:16]

    @property
    def subject(self) -> tuple[str, tuple[tuple[str, Any], ...]]:
        """The model and the settings to import for it."""
        return self.model, self.settings


def read(path: str) -> list[Case]:
    """The cases of a sweep file, those of one model together. Raises ProgramError if the file is wrong, saying how."""
    try:
        text = Path(path).read_text()
    except OSError as error:
        raise ProgramError(error_text(f"cannot read {path}", why=error.strerror or str(error))) from None
    try:
        content = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise ProgramError(error_text(f"{path} is not TOML", why=str(error), hint=f"as in\n{EXAMPLE}")) from None
    _check(path, content, "", {"models": list, "sweep": dict, "schedules": dict})
    sweep: dict[str, Any] = content["sweep"]
    found: list[Case] = []
    for model, settings in _models(path, content["models"]):
        for mesh, target in itertools.product(_meshes(path, sweep), _texts(path, sweep, "targets")):
            for name, tactics in content["schedules"].items():
                _check_text(path, f"schedules.{name}", tactics)
                found.append(Case(model, settings, mesh, target, name, tactics))
    _check_meanings(path, found)
    return found


def _check(path: str, table: Mapping[str, Any], where: str, wanted: Mapping[str, type]) -> None:
    """Raise ProgramError unless a table has exactly the keys of `wanted`, with non-empty values of these types."""
    for key in table:
        if key not in wanted:
            raise ProgramError(error_text(f"{path} has {where}{key}", why="nothing reads it", hint=near(key, wanted)))
    for key, kind in wanted.items():
        if not isinstance(table.get(key), kind) or not table[key]:
            raise ProgramError(error_text(f"{path} has no {where}{key}", hint=f"as in\n{EXAMPLE}"))


def _check_text(path: str, where: str, value: Any) -> None:
    if not isinstance(value, str):
        raise ProgramError(error_text(f"{where} in {path} is not text: {value!r}", hint=f"as in\n{EXAMPLE}"))


def _texts(path: str, sweep: Mapping[str, Any], key: str) -> list[str]:
    values = sweep.get(key)
    if not isinstance(values, list) or not values:
        raise ProgramError(error_text(f"{path} has no sweep.{key}", hint=f"as in\n{EXAMPLE}"))
    for value in values:  # type: ignore[reportUnknownVariableType]
        _check_text(path, f"sweep.{key}", value)
    return values  # type: ignore[reportUnknownVariableType]


def _models(path: str, tables: list[Any]) -> Iterator[tuple[str, tuple[tuple[str, Any], ...]]]:
    for number, table in enumerate(tables):
        if not isinstance(table, dict) or not isinstance(table.get("name"), str):  # type: ignore[reportUnknownMemberType]
            raise ProgramError(error_text(f"models[{number}] in {path} has no name", hint=f"as in\n{EXAMPLE}"))
        known: dict[str, Any] = {str(key): value for key, value in table.items()}  # type: ignore[reportUnknownVariableType]
        name = known.pop("name")
        choices = [value if isinstance(value, list) else [value] for value in known.values()]
        for values in itertools.product(*choices):
            yield name, tuple((key, _fixed(value)) for key, value in zip(known, values, strict=True))


def _fixed(value: Any) -> Any:
    """A value of a sweep file made hashable: lists become tuples."""
    return tuple(_fixed(item) for item in value) if isinstance(value, list) else value  # type: ignore[reportUnknownVariableType]


def _meshes(path: str, sweep: Mapping[str, Any]) -> list[str]:
    if "devices" not in sweep:
        return _texts(path, sweep, "meshes")
    devices, axes = sweep["devices"], _texts(path, sweep, "axes")
    if not isinstance(devices, int) or devices < 1:
        raise ProgramError(error_text(f"sweep.devices in {path} is not a number of devices: {devices!r}", hint="devices = 8"))
    return [",".join(f"{axis}={size}" for axis, size in zip(axes, shape, strict=True)) for shape in shapes(devices, len(axes))]


def shapes(devices: int, axes: int) -> list[tuple[int, ...]]:
    """All mesh shapes of `devices` devices and `axes` axes, larger first axes first.

    >>> shapes(4, 2)
    [(4, 1), (2, 2), (1, 4)]
    """
    if axes == 1:
        return [(devices,)]
    divisors = [size for size in range(devices, 0, -1) if devices % size == 0]
    return [(size, *rest) for size in divisors for rest in shapes(devices // size, axes - 1)]


def _check_meanings(path: str, cases: list[Case]) -> None:
    """Check the meshes, targets and schedules of all cases before the first one runs. (Models are not imported for it.)"""
    from partir import targets

    for check, texts in (
        (mesh_of, {case.mesh for case in cases}),
        (targets.get, {case.target for case in cases}),
        (schedule_of, {case.tactics for case in cases}),
    ):
        for text in sorted(texts):
            try:
                check(text)
            except PartirError as error:
                raise ProgramError(f"in {path}: {error}") from None
