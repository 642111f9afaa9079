"""Targets as files: all of a machine model as JSON, checked field by field when it is read."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import MISSING, asdict, fields, is_dataclass
from pathlib import Path
from types import NoneType, UnionType
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

from partir.cost.target import Target
from partir.errors import TargetError, error_text

FORMAT = "partir-target"
VERSION = 1


def save(target: Target, path: str | os.PathLike[str]) -> None:
    """Write a target as JSON, for `load`. Raises TargetError where nothing can be written."""
    record = {"format": FORMAT, "version": VERSION, "target": asdict(target)}
    try:
        Path(path).write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")
    except OSError as error:
        raise TargetError(error_text(f"cannot write the target file {os.fspath(path)}", why=error.strerror or "")) from None


def load(path: str | os.PathLike[str]) -> Target:
    """Read a target that `save` (or `partir calibrate --out`) wrote.

    Raises TargetError for a file that is not there or is damaged, with every field that is missing, unknown or of another type,
    and for numbers no machine has.
    """
    name = os.fspath(path)
    try:
        text = Path(path).read_text(encoding="utf-8")
    except FileNotFoundError:
        raise TargetError(error_text(f"no target file {name}")) from None
    except (OSError, UnicodeDecodeError) as error:
        raise TargetError(error_text(f"cannot read the target file {name}", why=str(error))) from None
    try:
        record = json.loads(text)
    except (json.JSONDecodeError, RecursionError) as error:
        where = f"line {error.lineno}, column {error.colno}" if isinstance(error, json.JSONDecodeError) else ""
        raise TargetError(
            error_text(f"the target file {name} is damaged", where=where, why=f"it is not JSON: {error}")
        ) from None
    wrong: list[str] = []
    if not isinstance(record, dict) or record.get("format") != FORMAT:  # type: ignore[reportUnknownMemberType]
        wrong.append(f'it has no "format": "{FORMAT}"')
    elif record.get("version") != VERSION:  # type: ignore[reportUnknownMemberType]
        wrong.append(f"it is of version {record.get('version')!r}, this partir reads version {VERSION}")  # type: ignore[reportUnknownMemberType]
    target: Any = None if wrong else _read(record.get("target"), Target, "target", wrong)  # type: ignore[reportUnknownMemberType]
    if wrong:
        hint = "a file that partir calibrate --out or partir.targets.save wrote"
        raise TargetError(error_text(f"{name} is not a target file", why="; ".join(wrong), hint=hint))
    return target


def _read(value: Any, kind: Any, at: str, wrong: list[str]) -> Any:
    """A value of the type `kind` from JSON; what does not fit goes to `wrong`, with its place `at`."""
    origin, parts = get_origin(kind), get_args(kind)
    if origin in (Union, UnionType):
        return None if value is None else _read(value, next(part for part in parts if part is not NoneType), at, wrong)
    if origin is Literal:
        expected = f"one of {', '.join(parts)}"
        fits = value in parts
    elif origin is tuple:
        expected, fits = "a list", isinstance(value, list)
        if fits:
            return tuple(_read(item, parts[0], f"{at}[{place}]", wrong) for place, item in enumerate(value))
    elif origin is Mapping:
        expected, fits = "an object", isinstance(value, dict)
        if fits:
            return {key: _read(item, parts[1], f"{at}[{key}]", wrong) for key, item in value.items()}
    elif is_dataclass(kind):
        expected, fits = "an object", isinstance(value, dict)
        if fits:
            return _record(value, kind, at, wrong)
    elif kind is bool:
        expected, fits = "true or false", isinstance(value, bool)
    elif kind is int:
        expected, fits = "a whole number, 1 or more", type(value) in (int, float) and value == value // 1 and value >= 1
    elif kind is float:
        expected, fits = "a number", type(value) in (int, float)
    else:
        expected, fits = "text", isinstance(value, str)
    if not fits:
        wrong.append(f"{at} is {json.dumps(value)[:40]}, not {expected}")
    return value


def _record(value: dict[str, Any], kind: Any, at: str, wrong: list[str]) -> Any:
    """A dataclass from an object; None where something in it is wrong."""
    known, hints = {field.name: field for field in fields(kind)}, get_type_hints(kind)
    found = len(wrong)
    for name, field in known.items():
        if name not in value and field.default is MISSING and field.default_factory is MISSING:
            wrong.append(f"{at} has no {name}")
    wrong += [f"{at} has {name!r}, which is no field of it" for name in value if name not in known]
    read = {name: _read(item, hints[name], f"{at}.{name}", wrong) for name, item in value.items() if name in known}
    return kind(**read) if len(wrong) == found else None
