"""The real TPU compiler takes what partir lowers: no TPU is needed, only libtpu (`make test-tpu`)."""

import os

os.environ["TPU_SKIP_MDS_QUERY"] = "1"

import jax
import numpy as np
import pytest
from hlo import collectives_in
from jax.experimental import topologies

import partir

pytestmark = pytest.mark.tpu


def tpu_mesh(shape: tuple[int, ...], names: tuple[str, ...]) -> jax.sharding.Mesh:
    topology = topologies.get_topology_desc(platform="tpu", topology_name="v3:2x2")
    return jax.sharding.Mesh(np.array(topology.devices).reshape(shape), names)


def test_the_tpu_compiler_takes_data_parallel_and_megatron() -> None:
    example = partir.zoo.gpt(layers=2, d_model=256, heads=8, vocab=512, seq=128, batch=16)
    mesh = tpu_mesh((4, 2), ("data", "model"))
    step = partir.jit(example.fun, mesh=mesh, donate_argnums=example.donate_argnums)

    part = step.trace(*example.args).partition([partir.DataParallel("data"), partir.Megatron("model")])
    compiled = part.lower().compile()

    memory = compiled.memory_analysis()
    assert memory.alias_size_in_bytes > 0.99 * memory.output_size_in_bytes
    found = collectives_in(compiled.as_text())
    assert set(found) == {"all_reduce"}
    assert 1 <= found["all_reduce"] <= part.collectives["all_reduce"]


def test_zero_3_keeps_no_gathered_parameters_on_tpu() -> None:
    example = partir.zoo.gpt(layers=6, d_model=1024, heads=8, vocab=512, seq=128, batch=8)
    step = partir.jit(example.fun, mesh=tpu_mesh((8,), ("data",)), donate_argnums=example.donate_argnums)
    traced = step.trace(*example.args)
    parameter_bytes = sum(int(np.prod(leaf.shape)) * 4 for leaf in jax.tree.leaves(example.args[0]))

    part = traced.partition([partir.DataParallel("data"), partir.ZeRO("data", stage=3)])
    compiled = part.lower().compile()

    assert collectives_in(compiled.as_text())["all_gather"] == part.collectives["all_gather"]
    assert compiled.memory_analysis().temp_size_in_bytes < 0.8 * parameter_bytes
