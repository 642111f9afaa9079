"""ZeRO-3 in the compiled program: every parameter is gathered once per phase that uses it, and not kept in between."""

import jax
import numpy as np
import pytest
from hlo import collectives_in

import partir

pytestmark = [pytest.mark.jax, pytest.mark.slow]

SEQUENTIAL = {"xla_cpu_enable_concurrency_optimized_scheduler": False}
"""XLA's CPU backend schedules for concurrency by default, all gathers at once; accelerators schedule for memory."""


def test_zero_3_does_not_keep_gathered_parameters() -> None:
    example = partir.zoo.gpt(layers=4, d_model=256, heads=4, vocab=256, seq=16, batch=8)
    mesh = jax.make_mesh((8,), ("data",))
    step = partir.jit(example.fun, mesh=mesh, donate_argnums=example.donate_argnums, compiler_options=SEQUENTIAL)
    traced = step.trace(*example.args)
    parameter_bytes = sum(int(np.prod(leaf.shape)) * 4 for leaf in jax.tree.leaves(example.args[0]))

    data_parallel, zero_3 = (
        traced.partition(schedule)
        for schedule in ([partir.DataParallel("data")], [partir.DataParallel("data"), partir.ZeRO("data", stage=3)])
    )
    whole, sharded = (part.lower().compile() for part in (data_parallel, zero_3))

    text = sharded.as_text()
    assert collectives_in(text)["all_gather"] == zero_3.collectives["all_gather"]
    assert whole.memory_analysis().temp_size_in_bytes > parameter_bytes
    assert sharded.memory_analysis().temp_size_in_bytes < 0.5 * parameter_bytes
    assert sharded.memory_analysis().argument_size_in_bytes < whole.memory_analysis().argument_size_in_bytes / 7
