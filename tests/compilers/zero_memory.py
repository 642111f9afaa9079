"""Compiles one training step by data parallelism and by ZeRO-3, and prints what XLA says of each as JSON."""

import json
import os

os.environ["JAX_PLATFORMS"] = "cpu"
# XLA's CPU backend schedules for concurrency, all gathers at once; accelerators schedule for memory, and so does this.
os.environ["XLA_FLAGS"] = "--xla_force_host_platform_device_count=8 --xla_cpu_enable_concurrency_optimized_scheduler=false"

import jax
import numpy as np
from hlo import collectives_in

import partir


def main() -> None:
    example = partir.zoo.gpt(layers=4, d_model=256, heads=4, vocab=256, seq=16, batch=8)
    step = partir.jit(example.fun, mesh=jax.make_mesh((8,), ("data",)), donate_argnums=example.donate_argnums)
    traced = step.trace(*example.args)
    found = {"parameters": sum(int(np.prod(leaf.shape)) * 4 for leaf in jax.tree.leaves(example.args[0]))}
    for name, schedule in {
        "data_parallel": [partir.DataParallel("data")],
        "zero_3": [partir.DataParallel("data"), partir.ZeRO("data", stage=3)],
    }.items():
        part = traced.partition(schedule)
        compiled = part.lower().compile()
        memory = compiled.memory_analysis()
        found[name] = {
            "planned": part.collectives,
            "compiled": collectives_in(compiled.as_text()),
            "arguments": memory.argument_size_in_bytes,
            "temporary": memory.temp_size_in_bytes,
        }
    print(json.dumps(found))


if __name__ == "__main__":
    main()
