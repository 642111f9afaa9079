"""Reads an op's origin off its JAX location: the scope as its author named it, the phase, and the source line.

jit(step)/transpose(jvp(layer_0))/attention-block/dot_general   ->   layer_0/attention-block, backward
"""

from __future__ import annotations

import os
import re
from functools import cache
from typing import Any

from partir.dialect.core import OriginAttr

_WRAPPER = re.compile(r"^(jit|pjit|jvp|transpose|vmap|remat|checkpoint|custom_jvp|custom_vjp|xla_call|pmap)\((.*)\)$", re.S)
_HERE = os.path.dirname(__file__)
_NOISE = frozenset(
    {"", "while", "body", "cond", "closed_call", "eval_jaxpr", "checkpoint", "rematted_computation", "custom_vjp_call"}
)


@cache
def parse_scope(name: str) -> tuple[str, str]:
    """The scope and phase in a location's name, whose last level is the primitive and is left out.

    >>> parse_scope("jit(step)/transpose(jvp(layer_0))/attention-block/dot_general")
    ('layer_0/attention-block', 'backward')
    >>> parse_scope("jit(step)/optimizer/mul")
    ('optimizer', 'forward')
    >>> parse_scope("jit(step)/jvp(layers)/while/body/eval_jaxpr/mlp-block/tanh")
    ('layers/mlp-block', 'forward')
    """
    levels = _levels(name)
    phase = "forward"
    kept: list[str] = []
    for level in levels[:-1]:
        inner, wrappers = _unwrap(level)
        if "transpose" in wrappers:
            phase = "backward"
        if "rematted_computation" in inner or "remat" in wrappers:
            phase = "recomputed"
        if wrappers and wrappers[-1] in ("jit", "pjit"):
            continue
        kept += [part for part in _levels(inner) if part not in _NOISE]
    return "/".join(kept), phase


def _levels(name: str) -> list[str]:
    """Split at slashes that are not inside parentheses."""
    levels, depth, start = [], 0, 0
    for i, c in enumerate(name):
        if c == "(":
            depth += 1
        elif c == ")":
            depth -= 1
        elif c == "/" and depth == 0:
            levels.append(name[start:i])
            start = i + 1
    return [*levels, name[start:]]


def _unwrap(level: str) -> tuple[str, list[str]]:
    """Take off the transformations around a level: `transpose(jvp(x))` is `x` under [transpose, jvp]."""
    wrappers: list[str] = []
    while (found := _WRAPPER.match(level)) is not None:
        wrappers.append(found.group(1))
        level = found.group(2)
    return level, wrappers


class Origins:
    """A memo from locations to origins: a program has far fewer locations than ops."""

    def __init__(self) -> None:
        self._memo: dict[Any, tuple[str, str]] = {}
        self._origin: dict[tuple[str, str, str], OriginAttr] = {}

    def of(self, location: Any, prefix: str) -> OriginAttr:
        """The origin of an op at `location`, inlined from a call whose location is named `prefix` ("": not inlined)."""
        name, source = self._read(location)
        key = (prefix, name, source)
        found = self._origin.get(key)
        if found is None:
            scope, phase = parse_scope(f"{prefix}/{name}" if prefix else name)
            found = self._origin[key] = OriginAttr.of(scope, phase, source)
        return found

    def name(self, location: Any) -> str:
        """The full name of a location, its primitive included."""
        return self._read(location)[0]

    def _read(self, location: Any) -> tuple[str, str]:
        attr = location.attr
        found = self._memo.get(attr)
        if found is None:
            found = self._memo[attr] = (_name(location), _source(location))
        return found


def _name(location: Any) -> str:
    kind = type(location).__name__
    if kind == "NameLoc":
        return str(location.name_str)
    if kind == "FusedLoc":
        names = [_name(inner) for inner in location.locations]
        return next((name for name in names if name), "")
    return ""


def _source(location: Any) -> str:
    """`file.py:line` of the innermost frame in the user's own code, else of the innermost one; "" if JAX recorded none."""
    frames = [frame for frame in _frames(location) if _HERE not in frame[0]]
    own = [frame for frame in frames if "site-packages" not in frame[0]]
    return next((f"{os.path.basename(file)}:{line}" for file, line in own or frames), "")


def _frames(location: Any) -> list[tuple[str, int]]:
    """(file, line) of every frame of a location, innermost first."""
    kind = type(location).__name__
    if kind == "NameLoc":
        return _frames(location.child_loc)
    if kind == "CallSiteLoc":
        return _frames(location.callee) + _frames(location.caller)
    if kind == "FileLineColLoc":
        return [(str(location.filename), int(location.start_line))]
    if kind == "FusedLoc":
        return [frame for inner in location.locations for frame in _frames(inner)]
    return []
