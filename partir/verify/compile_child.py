"""Compiles one program in a child process: `python -m partir.verify.compile_child JOB OUT` reads a job file and fills a folder.

A compiler may print, hang or abort. The parent (`real_compilers.py`) sees only files, an exit code, and its own clock.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import jax
import numpy as np
from jax.core import ShapedArray
from jax.experimental import mesh_utils, topologies
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from partir.frontend.trace import Host
from partir.runtime.emit import Local
from partir.runtime.execute import Callee, call, dtype_of


def devices_of(topology: Mapping[str, Any]) -> list[Any]:
    """Devices to compile for: those of a topology description, or this process's virtual devices for the platform `cpu`."""
    if topology["platform"] == "cpu":
        return list(jax.devices("cpu"))
    options = dict(topology["options"])
    return list(topologies.get_topology_desc(platform=topology["platform"], **options).devices)


def mesh_of(axes: list[tuple[str, int]], devices: list[Any]) -> Mesh:
    """A mesh of these devices; on a TPU torus axes are assigned to its dims as `jax.make_mesh` does."""
    sizes = [size for _, size in axes]
    if devices[0].platform == "tpu":
        grid = mesh_utils.create_device_mesh(sizes, devices, allow_split_physical_axes=True)
    else:
        grid = np.array(devices).reshape(sizes)
    return Mesh(grid, [name for name, _ in axes])


def lower(job: Mapping[str, Any], mesh: Mesh) -> Any:
    """The job's device-local program as a `jax.stages.Lowered` over the mesh."""
    out = tuple(ShapedArray(tuple(leaf["local"]), dtype_of(leaf["dtype"])) for leaf in job["results"])
    callee = Callee(Local(job["text"], job["channels"]), out, Host(), job["name"])

    def body(*flat: Any) -> Any:
        here = [
            jax.device_put(x, NamedSharding(mesh, _spec(leaf))) if leaf["memory"] else x
            for x, leaf in zip(flat, job["arguments"], strict=True)
        ]
        results = jax.shard_map(
            lambda *xs: call(callee, *xs),
            mesh=mesh,
            in_specs=tuple(_spec(leaf) for leaf in job["arguments"]),
            out_specs=[_spec(leaf) for leaf in job["results"]],
            check_vma=False,
        )(*here)
        return [
            jax.device_put(y, _sharding(mesh, leaf)) if leaf["memory"] else y
            for y, leaf in zip(results, job["results"], strict=True)
        ]

    body.__name__ = body.__qualname__ = job["name"]
    shapes = [
        jax.ShapeDtypeStruct(leaf["shape"], dtype_of(leaf["dtype"]), sharding=_sharding(mesh, leaf))
        for leaf in job["arguments"]
    ]
    donated = tuple(i for i, leaf in enumerate(job["arguments"]) if leaf["donated"])
    options = dict(job["compiler_options"]) or None
    return jax.jit(body, donate_argnums=donated, keep_unused=True, compiler_options=options).lower(*shapes)


def _spec(leaf: Mapping[str, Any]) -> PartitionSpec:
    return PartitionSpec(*(tuple(entry) if isinstance(entry, list) else entry for entry in leaf["spec"]))


def _sharding(mesh: Mesh, leaf: Mapping[str, Any]) -> NamedSharding:
    return NamedSharding(mesh, _spec(leaf), memory_kind=leaf["memory"] or None)


def main(job_file: str, out: str) -> int:
    """Compile one job. Writes `program.hlo` and `said.json` (memory, optimal seconds) or, if that raises, `refused.txt`."""
    job = json.loads(Path(job_file).read_text())
    if any("64" in leaf["dtype"] or "128" in leaf["dtype"] for leaf in (*job["arguments"], *job["results"])):
        jax.config.update("jax_enable_x64", True)
    try:
        mesh = mesh_of([(name, size) for name, size in job["mesh"]], devices_of(job["topology"]))
        compiled = lower(job, mesh).compile()
    except Exception as error:
        Path(out, "refused.txt").write_text(f"{type(error).__name__}: {error}")
        return 1
    memory = compiled.memory_analysis()
    cost = compiled.cost_analysis() or {}
    said = {
        "memory": {name: int(getattr(memory, f"{name}_size_in_bytes")) for name in ("argument", "output", "alias", "temp")},
        "optimal_seconds": cost.get("optimal_seconds"),
    }
    Path(out, "program.hlo").write_text(compiled.as_text())
    Path(out, "said.json").write_text(json.dumps(said))
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
