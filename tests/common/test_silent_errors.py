"""What plain jit computes wrongly without a word is right: a sweep in small of `benchmarks/silent_errors.py` (CASES c9-c11)."""

import itertools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from equal import MESHES, mesh_of
from jax.sharding import PartitionSpec as P
from sweep import PROGRAMS, Specs, is_wrong, specs_of

import partir

pytestmark = pytest.mark.jax

CASES = list(itertools.product(PROGRAMS, MESHES))


def answer(fun: Any, args: tuple[Any, ...], mesh: str, specs: Specs) -> Any:
    return partir.jit(fun, mesh=mesh_of(mesh), in_shardings=specs, schedule=[])(*args)


@pytest.mark.parametrize(("name", "mesh"), CASES)
def test_sweep(name: str, mesh: str):
    _, (fun, args) = PROGRAMS[name]
    shape, axes = MESHES[mesh]
    every = list(specs_of(args, dict(zip(axes, shape, strict=True))))
    specs = every[CASES.index((name, mesh)) * 7 % len(every)]

    assert not is_wrong(answer(fun, args, mesh, specs), jax.jit(fun)(*args)), specs


def test_scatter_of_rows_that_do_not_divide():
    t = (np.arange(16) % 8).astype("int32")

    counts = answer(lambda t: jnp.zeros(8).at[t[1:]].add(1), (t,), "4x2", (P("data"),))

    assert counts.tolist() == [1, 2, 2, 2, 2, 2, 2, 2]


@pytest.mark.parametrize("axis", ["data", "model"])
def test_weight_gradient_with_space_sharded_and_an_axis_unused(axis: str):
    _, (fun, args) = PROGRAMS["weight_gradient[1x1 SAME]"]

    assert not is_wrong(answer(fun, args, "4x2", (P(None, axis), P())), jax.jit(fun)(*args))


def test_per_example_gradients_over_all_axes():
    _, (fun, args) = PROGRAMS["per_example_gradient[1x1 SAME]"]
    step = partir.jit(fun, mesh=mesh_of("4x2"), in_shardings=(P(), P(("data", "model"))), schedule=[])

    assert step.trace(*args).partition().collectives == {}
    assert not is_wrong(step(*args), jax.jit(fun)(*args))


def test_the_sweep_tells_wrong_from_right():
    right = np.arange(8.0)

    assert not is_wrong(right + 1e-6, right)
    assert is_wrong(right * 2, right)
    assert is_wrong(np.where(right == 3, 4, right), right)
