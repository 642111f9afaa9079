"""What the parts of a program are for, and what its forward pass sums over."""

import jax
import jax.numpy as jnp
import pytest
from tiny import undecided

from partir.sharding.roles import roles_of

pytestmark = pytest.mark.jax


def step(w, m, x):
    """One dense layer and its update by momentum."""
    loss, gradient = jax.value_and_grad(lambda w: jnp.mean(jnp.tanh(x @ w) ** 2))(w)
    m = 0.9 * m + gradient
    return w - 0.1 * m, m, loss


def test_parameters_are_the_state_that_the_forward_pass_reads():
    assignment = undecided(step, (8, 4), (8, 4), (16, 8))

    assert roles_of(assignment.structure).parameters == (0,)
    assert {dim.name for dim in assignment.parameter_dims} == {"w"}
    assert {dim.name for dim in assignment.input_dims} == {"x"}


def test_the_forward_pass_sums_over_the_width_and_takes_the_mean():
    assignment = undecided(step, (8, 4), (8, 4), (16, 8))

    found = [(total.op, assignment.classes.size[total.class_], total.reads) for total in assignment.forward_sums]

    assert found == [
        ("stablehlo.dot_general", 8, "both"),
        ("stablehlo.reduce", 16, "activations"),
        ("stablehlo.reduce", 4, "activations"),
    ]
    assert [total.is_projection for total in assignment.forward_sums] == [True, False, False]


def test_a_contraction_of_activations_is_no_projection():
    assignment = undecided(lambda q, k: q @ k.T, (8, 4), (6, 4))

    ((total),) = assignment.forward_sums
    assert (total.reads, total.is_contraction, total.is_projection) == ("activations", True, False)
