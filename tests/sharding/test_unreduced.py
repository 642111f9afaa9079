"""Unreduced sums that part and meet again: what is computed from one by linear ops alone is reduced once, where it ends."""

import jax
import jax.numpy as jnp
import pytest
from equal import assert_same, mesh_of
from hlo import collectives_in
from tiny import planned, undecided, value

import partir
from partir import Manual, Tile
from partir.sharding import unreduced
from partir.sharding.propagation import Propagation

pytestmark = pytest.mark.jax


def gated(ups, downs, x, y):
    """Three layers that each read silu(x). Its gradient takes two paths through products, and the three are added."""

    def loss(x):
        return jnp.sum((sum(jnp.tanh(jax.nn.silu(x) @ up) @ down for up, down in zip(ups, downs, strict=True)) - y) ** 2)

    return jax.grad(loss)(x)


def test_gradients_that_part_and_meet_are_added_first_and_reduced_once(x64, rng):
    ups, downs = ([rng.standard_normal(shape) for _ in range(3)] for shape in ((16, 8), (8, 16)))
    args = ups, downs, *rng.standard_normal((2, 4, 16))

    part = partir.jit(gated, mesh=mesh_of("4x2")).trace(*args).partition([Manual({"ups": 1}, axis="model")])

    assert part.collectives == {"all_reduce": 2}, "one in the forward pass, one for the gradient"
    compiled = part.lower().compile()
    assert collectives_in(compiled.as_text()) == part.collectives
    assert_same(compiled(*jax.device_put(args, part.in_shardings)), jax.jit(gated)(*args))


def test_gradients_that_are_read_on_the_way_are_reduced_before(x64, rng):
    """A product of the unreduced gradient with itself is not linear: nothing is passed on."""
    ups, downs = ([rng.standard_normal(shape)] for shape in ((16, 8), (8, 16)))
    args = ups, downs, *rng.standard_normal((2, 4, 16))

    def squared(ups, downs, x, y):
        gradient = gated(ups, downs, x, y)
        return gradient * x + gradient * gradient

    part = partir.jit(squared, mesh=mesh_of("4x2")).trace(*args).partition([Manual({"ups": 1}, axis="model")])

    assert part.collectives == {"all_reduce": 2}
    assert_same(part(*args), jax.jit(squared)(*args))


def test_three_sums_that_meet_are_reduced_once():
    """The example of the module's docstring: a, b, c and a + b are kept, a + b + c is reduced."""
    decided = undecided(lambda a, b, c, x: jnp.tanh((x @ a + x @ b) + x @ c), (8, 6), (8, 6), (8, 6), (4, 8)).apply(
        Tile("x", 1, "a")
    )
    propagation = Propagation(decided)

    passes = unreduced.decide(decided, *propagation.tentative(propagation.claimed()))

    terms = [f"@forward:dot_general.{n}" for n in range(3)]
    assert passes.keep == {value(decided, name): {"a"} for name in (*terms, "@forward:add.0")}
    assert list(planned(decided).reductions) == [value(decided, "@forward:add.1")]
