"""Repeated layers are one decision."""

import jax.numpy as jnp
import pytest
from tiny import undecided

import partir

pytestmark = pytest.mark.jax


def layers(w0, w1, w2, x):
    for number, w in enumerate((w0, w1, w2)):
        with partir.scope(f"layer_{number}"):
            x = jnp.tanh(x @ w) @ w.T
    return x


def test_hidden_dims_of_three_layers_are_one_group():
    assignment = undecided(layers, *[(4, 8)] * 3, (16, 4))
    hidden = [assignment.class_of(w, 1) for w in range(3)]

    group = assignment.group_of[hidden[0]]

    assert group.classes == tuple(hidden)
    assert (group.size, group.scopes) == (8, ("layer_*",))
    assert repr(group) == "Group(3 classes of size 8, layer_*)"


def test_another_size_is_another_group():
    assignment = undecided(layers, (4, 8), (4, 8), (4, 16), (16, 4))

    assert len(assignment.group_of[assignment.class_of(0, 1)].classes) == 2
