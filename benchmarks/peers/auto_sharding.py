"""One compilation of the zoo's GPT in the peer's environment, where JAX (0.6.2) still has XLA's auto-sharding.

    build/peers/venv/bin/python benchmarks/peers/auto_sharding.py SETTINGS HOW OUT [PROGRAM]

SETTINGS are those of `partir.zoo.gpt` as JSON. HOW is `auto`: XLA's auto-sharding (Alpa's integer program) decides; `plain`:
data parallelism over all devices, no auto-sharding; `given`: the device-local program in the file PROGRAM, which partir made.
OUT gets what the TPU compiler said as gzipped JSON. `against_auto_sharding.py` starts this.
"""

from __future__ import annotations

import gzip
import json
import sys
import time
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path
from types import ModuleType
from typing import Any

import jax
from jax._src.sharding_impls import AUTO
from jax.core import ShapedArray
from jax.experimental import mesh_utils, topologies
from jax.extend.core import Primitive
from jax.extend.mlir import ir
from jax.extend.mlir.dialects import func
from jax.interpreters import mlir
from jax.sharding import Mesh, NamedSharding, PartitionSpec

PARTIR = Path(__file__).parents[2] / "partir"
TOPOLOGY = "v3:2x2"
MESH = {"data": 4, "model": 2}

local_p = Primitive("local")
local_p.multiple_results = True


def bare(name: str, folder: Path) -> None:
    """Make a package of a folder without running its `__init__`: partir itself needs a newer JAX, its models do not."""
    package = ModuleType(name)
    package.__path__ = [str(folder)]
    sys.modules[name] = package


@local_p.def_abstract_eval
def _abstract(*_: Any, text: str, out: tuple[ShapedArray, ...]) -> list[ShapedArray]:
    return list(out)


def _lower(ctx: Any, *args: Any, text: str, out: tuple[ShapedArray, ...]) -> Any:
    module = ctx.module_context
    name = mlir.merge_mlir_modules(module.module, "local", ir.Module.parse(text), dst_symtab=module.symbol_table)
    return func.CallOp(module.symbol_table[name].type.results, ir.FlatSymbolRefAttr.get(name), args).results


mlir.register_lowering(local_p, _lower)


def given(program: dict[str, Any], example: Any, mesh: Mesh) -> tuple[Callable[..., Any], Any, Any]:
    """A device-local program as a function of the example's arguments, and how these and its results lie."""
    ins, outs = ([PartitionSpec(*map(_entry, spec)) for spec in program[side]] for side in ("ins", "outs"))
    leaves, results = jax.tree.flatten(jax.eval_shape(example.fun, *example.args))
    arguments = jax.tree.structure(example.args)
    out = [ShapedArray(NamedSharding(mesh, s).shard_shape(v.shape), v.dtype) for v, s in zip(leaves, outs, strict=True)]

    def local(*flat: jax.Array) -> list[jax.Array]:
        return local_p.bind(*flat, text=program["text"], out=tuple(out))

    def step(*args: Any) -> Any:
        inside = jax.shard_map(local, mesh=mesh, in_specs=tuple(ins), out_specs=outs, check_vma=False)
        return jax.tree.unflatten(results, inside(*jax.tree.leaves(args)))

    def named(tree: Any, specs: list[PartitionSpec]) -> Any:
        return jax.tree.unflatten(tree, [NamedSharding(mesh, spec) for spec in specs])

    return step, named(arguments, ins), named(results, outs)


def _entry(names: str | list[str] | None) -> str | tuple[str, ...] | None:
    return tuple(names) if isinstance(names, list) else names


def main(settings: str, how: str, out: str, program: str = "") -> int:
    bare("partir", PARTIR)
    bare("partir.zoo", PARTIR / "zoo")
    from partir.zoo.gpt import gpt

    example = gpt(**json.loads(settings))
    devices = topologies.get_topology_desc(platform="tpu", topology_name=TOPOLOGY).devices
    mesh = Mesh(mesh_utils.create_device_mesh(list(MESH.values()), devices, allow_split_physical_axes=True), list(MESH))
    step, ins, outs = example.fun, AUTO(mesh), AUTO(mesh)
    if how == "plain":
        whole, cut = NamedSharding(mesh, PartitionSpec()), NamedSharding(mesh, PartitionSpec(tuple(MESH)))
        ins, outs = (whole, whole, cut), whole
    elif how == "given":
        step, ins, outs = given(json.loads(Path(program).read_text()), example, mesh)
    # Donation ties results to arguments, which adds to the integer program: left out, in the peer's favour.
    donated = () if how == "auto" else example.donate_argnums
    jitted = jax.jit(step, in_shardings=ins, out_shardings=outs, donate_argnums=donated, keep_unused=True)
    lowered = jitted.lower(*example.args)
    start, busy = time.perf_counter(), time.process_time()
    compiled = lowered.compile()
    seconds, busy = time.perf_counter() - start, time.process_time() - busy
    memory = compiled.memory_analysis()
    record = {
        "text": compiled.as_text(),
        "memory": {name: int(getattr(memory, f"{name}_size_in_bytes")) for name in ("argument", "output", "alias", "temp")},
        "optimal_seconds": compiled.cost_analysis()["optimal_seconds"],
        "seconds": seconds,
        "processor_seconds": busy,
        "compiler": f"jax {version('jax')}, libtpu {version('libtpu')}",
    }
    Path(out).write_bytes(gzip.compress(json.dumps(record).encode()))
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
