"""Shardings over other meshes of the same devices, said over the axes of the mesh to partition over."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from jax.sharding import NamedSharding, PartitionSpec

from partir.mesh import Mesh


def spec_over(sharding: NamedSharding, mesh: Mesh) -> PartitionSpec | None:
    """The spec that gives each device the same piece; None where no axes of `mesh` do."""
    theirs = Mesh.of(sharding.mesh)
    entries: list[Any] = []
    for entry in sharding.spec:
        if entry is None or entry is PartitionSpec.UNCONSTRAINED:
            entries.append(entry)
            continue
        axes = mesh.translated((entry,) if isinstance(entry, str) else tuple(entry), theirs)
        if axes is None:
            return None
        entries.append(_entry(axes))
    return PartitionSpec(*entries)


def layout_over(sharding: Any, shape: Sequence[int], mesh: Mesh) -> PartitionSpec | None:
    """How an array of this shape lies, whatever says so: the spec over `mesh`; None where its devices are others, or have
    pieces that no axes give them."""
    if isinstance(sharding, NamedSharding):
        return spec_over(sharding, mesh)
    held = {device.id: index for device, index in sharding.devices_indices_map(tuple(shape)).items()}
    devices = mesh.device_ids or tuple(sorted(held))
    if held.keys() != set(devices) or len(devices) != mesh.size:
        return None
    entries: list[Any] = []
    for dim, piece in enumerate(sharding.shard_shape(tuple(shape))):
        axes = mesh.axes_of([(held[device][dim].start or 0) // max(piece, 1) for device in devices])
        if axes is None:
            return None
        entries.append(_entry(axes))
    return PartitionSpec(*entries)


def _entry(axes: tuple[str, ...]) -> Any:
    """The axes of one dim as a PartitionSpec has them."""
    return axes[0] if len(axes) == 1 else axes or None
