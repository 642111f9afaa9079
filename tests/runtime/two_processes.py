"""One of two processes of a job on this machine: trains an MLP over a mesh that spans both, and prints what it got."""

import os
import sys

os.environ["XLA_FLAGS"] = "--xla_force_host_platform_device_count=4"
os.environ["JAX_PLATFORMS"] = "cpu"

import jax
import numpy as np

import partir


def main(port: str, number: int) -> None:
    jax.distributed.initialize(f"127.0.0.1:{port}", num_processes=2, process_id=number)
    example = partir.zoo.mlp(widths=(16, 32, 16, 8), batch=16)
    params, state, batch = example.concrete(0)
    mesh = jax.make_mesh((4, 2), ("data", "model"))
    schedule = [partir.DataParallel("data"), partir.Megatron("model"), partir.ZeRO("data", stage=3)]
    if number == 1:
        schedule = schedule[:2]  # process 0 decides for all
    step = partir.jit(example.fun, mesh=mesh, donate_argnums=example.donate_argnums, schedule=schedule)
    expected = jax.jit(example.fun)(params, state, batch)
    for _ in range(2):
        params, state, loss = step(params, state, batch)
    first = jax.tree.leaves(params)[0]
    again = jax.jit(example.fun)(*expected[:2], batch)
    np.testing.assert_allclose(np.asarray(loss), np.asarray(again[2]), rtol=1e-5)
    kept = committed(mesh, number)
    print(f"process {number}: kept {kept}", flush=True)
    print(f"process {number}: devices {len(jax.devices())}, loss {float(loss):.6f}, spec {first.sharding.spec}", flush=True)


def committed(mesh: jax.sharding.Mesh, number: int) -> list[tuple[str | None, ...]]:
    """How results lie whose argument comes in with one layout and then with another; process 0 decides nothing on it."""
    schedule = [] if number == 0 else [partir.Manual({"x": jax.sharding.PartitionSpec("data", "model")})]
    double = partir.jit(lambda x: x * 2, mesh=mesh, schedule=schedule)
    numbers = np.arange(64.0).reshape(8, 8)
    found = []
    for spec in (jax.sharding.PartitionSpec("model", None), jax.sharding.PartitionSpec(None, "data")):
        x = jax.make_array_from_callback((8, 8), jax.sharding.NamedSharding(mesh, spec), lambda index: numbers[index])
        found.append(tuple(double(x).sharding.spec))
    return found


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
