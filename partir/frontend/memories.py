"""Finds results that a function moves to host memory, and refuses host memory or host computation anywhere inside it.

JAX's lowering for CPU drops such moves, so they are read off the jaxpr.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import jax
from jax.extend.core import ClosedJaxpr, Jaxpr, Literal

from partir.errors import ProgramError, error_text, error_texts
from partir.frontend.foreign import equations

_HERE = (os.path.dirname(jax.__file__), os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
"""The folders of JAX and of this library; stack frames in them are not the user's."""


def host_kind(place: Any) -> str:
    """The memory kind ("pinned_host", "unpinned_host") that a sharding or memory space asks for; "" for device memory."""
    if isinstance(place, jax.memory.Space):
        return "pinned_host" if place == jax.memory.Space.Host else ""
    kind = getattr(place, "memory_kind", None)
    if kind in (None, "device"):
        return ""
    devices = () if isinstance(getattr(place, "mesh", None), jax.sharding.AbstractMesh) else place.device_set
    return "" if any(device.default_memory().kind == kind for device in list(devices)[:1]) else str(kind)


@dataclass
class Moves:
    """The moves between memories that a function asks for: the memory kind of each result (by number) that is not left in
    device memory, and `notes` for the user on requests that have no effect."""

    results: dict[int, str] = field(default_factory=dict[int, str])
    notes: list[str] = field(default_factory=list[str])


def moves_of(jaxpr: Any, name: str) -> Moves:
    """Read the moves of a traced function called `name`.

    Raises ProgramError, with every offender, for values that are put into host memory and are not results, and for
    computations on the host.
    """
    found = Moves()
    placing = [equation for equation in equations(jaxpr) if _places_values(equation)]
    if not placing:
        return found
    problems: list[str] = []
    outputs = jaxpr.jaxpr.outvars
    kinds = _walk(jaxpr.jaxpr, [True] * len(outputs), name, problems)
    if problems:
        raise ProgramError(error_texts(problems))
    found.results = {number: kind for number, kind in enumerate(kinds) if kind}
    for equation in placing:
        for place in _places(equation):
            if equation.primitive.name == "device_put" and isinstance(place, jax.sharding.NamedSharding):
                found.notes.append(
                    f"device_put{_at(equation)} asks for {_text(place.spec)} inside {name}: there it only chooses memory, as "
                    "in jax.jit; jax.lax.with_sharding_constraint asks for a layout"
                )
    return found


def _places_values(equation: Any) -> bool:
    """Whether an equation says where a value is to be, or where it is to be computed."""
    name = equation.primitive.name
    return (
        name == "device_put" or bool(_computes_on(equation)) or (name == "sharding_constraint" and any(_host_kinds(equation)))
    )


def _computes_on(equation: Any) -> str:
    """Where `compute_on` asks to compute an equation; "" for the device itself."""
    own = equation.params.get("compute_type") if equation.primitive.name == "compute_on" else None
    kind = own or getattr(getattr(equation, "ctx", None), "compute_type", None) or "device"
    return "" if kind == "device" or str(kind).startswith("gpu_stream") else str(kind)


def _places(equation: Any) -> Sequence[Any]:
    """The shardings or memory spaces that an equation asks for, one for each result."""
    if equation.primitive.name == "device_put":
        return tuple(equation.params.get("devices", ()))
    return (equation.params.get("sharding"),) if equation.primitive.name == "sharding_constraint" else ()


def _host_kinds(equation: Any) -> list[str]:
    """The kind of memory that each result of an equation is put into; "" where none is named."""
    return [host_kind(place) for place in _places(equation)]


def _walk(jaxpr: Any, last: Sequence[bool], name: str, problems: list[str]) -> list[str]:
    """The memory kinds of a jaxpr's results; messages about other values in host memory are added to `problems`.

    `last` says for each result whether it is a result of the whole function, too: only such a value may be in host memory.
    """
    used = {v for equation in jaxpr.eqns for v in equation.invars if not isinstance(v, Literal)}
    handed: dict[Any, bool] = {}
    for variable, is_last in zip(jaxpr.outvars, last, strict=True):
        if not isinstance(variable, Literal):
            handed[variable] = handed.get(variable, True) and is_last
    kinds: dict[Any, str] = {}
    for equation in jaxpr.eqns:
        ends = [handed.get(v, False) and v not in used for v in equation.outvars]
        if place := _computes_on(equation):
            problems.append(_on_host(name, equation, place))
        elif equation.primitive.name in ("jit", "pjit"):
            inner = _walk(equation.params["jaxpr"].jaxpr, ends, name, problems)
            kinds.update(zip(equation.outvars, inner, strict=True))
        else:
            for variable, kind, end in zip(equation.outvars, _host_kinds(equation), ends, strict=False):
                if kind and end and equation.primitive.name == "device_put":
                    kinds[variable] = kind
                elif kind:
                    problems.append(_inside(name, equation, variable, kind))
            for sub in _inner(equation.params.values()):
                _walk(sub, [False] * len(sub.outvars), name, problems)
    return ["" if isinstance(v, Literal) else kinds.get(v, "") for v in jaxpr.outvars]


def _inner(values: Any) -> Iterator[Any]:
    """The jaxprs among the parameters of an equation."""
    for value in values:
        if isinstance(value, ClosedJaxpr | Jaxpr):
            yield value.jaxpr if isinstance(value, ClosedJaxpr) else value
        elif isinstance(value, tuple | list):
            yield from _inner(value)


def _inside(name: str, equation: Any, variable: Any, kind: str) -> str:
    return error_text(
        f"cannot keep a value in {kind} memory inside {name}",
        where=f"{equation.primitive.name}{_at(equation)}, {variable.aval.dtype}{list(variable.aval.shape)}",
        why="only arguments and results can be kept in host memory, and this is not the end of a result",
        hint="jax.device_put of a result, memory_kind in in_shardings and out_shardings, jax.checkpoint without offloading",
    )


def _on_host(name: str, equation: Any, place: str) -> str:
    return error_text(
        f"cannot compute on {place} inside {name}",
        where=f"{equation.primitive.name}{_at(equation)}",
        why="the program of each device is computed on that device",
        hint="leave compute_on out, or compute this outside of the partitioned function",
    )


def _text(spec: Any) -> str:
    """A spec as users write it: P('x', None)."""
    return f"P({', '.join(map(repr, spec))})"


def _at(equation: Any) -> str:
    """` at file.py:12`, where the user wrote an equation; nothing if JAX recorded no frame of theirs."""
    traceback = getattr(equation.source_info, "traceback", None)
    for frame in traceback.frames if traceback is not None else ():
        if not frame.file_name.startswith(_HERE):
            return f" at {os.path.basename(frame.file_name)}:{frame.line_num}"
    return ""
