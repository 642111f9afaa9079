"""Finds the target and the platform of a mesh from its devices."""

from __future__ import annotations

from typing import Any

import jax

from partir.cost import registry as targets
from partir.cost.target import Target
from partir.errors import TargetError, error_text


def target_of(name: str, mesh: Any) -> Target:
    """The target that describes the devices of a mesh. Raises TargetError if there are no devices, or of an unknown kind.

    `name` is the function's, for the message.
    """
    devices = list(mesh.devices.flat) if isinstance(mesh, jax.sharding.Mesh) else []
    found = targets.of_device(devices[0].device_kind) if devices else None
    if found is None:
        why = f"the devices are {devices[0].device_kind!r}" if devices else "the mesh has no devices that would say it"
        raise TargetError(
            error_text(
                f"no target to estimate {name} on",
                why=why,
                hint=f"partition(..., target={targets.names()[1]!r}), partir.jit(f, target=...); one of "
                f"{', '.join(targets.names())}, or partir.targets.Target(...)",
            )
        )
    return found


def platform_of(mesh: Any) -> str:
    """The platform to import for ("cpu", "cuda", "tpu"): that of the mesh's devices, else JAX's default backend."""
    if isinstance(mesh, jax.sharding.Mesh):
        kind = str(mesh.devices.flat[0].platform)
        return {"gpu": "cuda"}.get(kind, kind)
    return {"gpu": "cuda"}.get(jax.default_backend(), jax.default_backend())
