"""Targets by name: those that partir knows, and those that users register."""

from __future__ import annotations

import difflib

from partir.cost import machines
from partir.cost.target import Target
from partir.errors import TargetError, error_text

_REGISTRY: dict[str, Target] = {target.name: target for target in machines.ALL}


def register(target: Target) -> Target:
    """Make a target known by its name. Raises TargetError when another one has the name."""
    if _REGISTRY.get(target.name, target) != target:
        raise TargetError(error_text(f"there is another target {target.name!r}", hint="another name"))
    _REGISTRY[target.name] = target
    return target


def names() -> tuple[str, ...]:
    """The names of all targets."""
    return tuple(_REGISTRY)


def get(name: str | Target) -> Target:
    """The target of a name (a target stands for itself). Raises TargetError, with the names there are.

    >>> get("h100")
    Target('h100': 989 TFLOP/s, 80 GB)
    """
    if isinstance(name, Target):
        return name
    known = names()
    if name not in _REGISTRY:
        near = difflib.get_close_matches(str(name), known, n=1)
        hint = f"{near[0]}, or partir.targets.Target(...)" if near else "partir.targets.Target(...) for a machine of your own"
        raise TargetError(error_text(f"no target {name!r}", why=f"there are {', '.join(known)}", hint=hint))
    return _REGISTRY[name]


def of_device(kind: str) -> Target | None:
    """The target of what JAX calls a device, if there is one: the longest name that it begins with."""
    known = [(len(k), name) for name in names() for k in _REGISTRY[name].device_kinds if kind.lower().startswith(k.lower())]
    return _REGISTRY[max(known)[1]] if known else None
