"""What JAX must be told before it starts: virtual devices on the host, as many as the mesh has."""

from __future__ import annotations

import os

COUNT_FLAG = "--xla_force_host_platform_device_count"


def host_devices(count: int) -> None:
    """Ask for the CPU platform with `count` virtual devices, unless the user has asked for something else.

    Nothing imported so far may have used JAX's devices; later, JAX no longer looks.
    """
    os.environ.setdefault("JAX_PLATFORMS", "cpu")
    flags = os.environ.get("XLA_FLAGS", "")
    if COUNT_FLAG not in flags:
        os.environ["XLA_FLAGS"] = f"{flags} {COUNT_FLAG}={count}".strip()
