"""Sets the environment variables that JAX reads when it starts: the CPU platform, with virtual devices."""

from __future__ import annotations

import os

COUNT_FLAG = "--xla_force_host_platform_device_count"


def host_devices(count: int) -> None:
    """Ask for the CPU platform with `count` virtual devices, unless the user has asked for something else.

    This must run before anything uses JAX's devices: JAX reads the variables only once.
    """
    os.environ.setdefault("JAX_PLATFORMS", "cpu")
    flags = os.environ.get("XLA_FLAGS", "")
    if COUNT_FLAG not in flags:
        os.environ["XLA_FLAGS"] = f"{flags} {COUNT_FLAG}={count}".strip()
