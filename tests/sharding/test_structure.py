"""Dims that are cut over more devices than an op has blocks of them."""

import jax.numpy as jnp
import pytest
from tiny import planned, undecided

from partir import Tile

pytestmark = pytest.mark.jax

SPLIT = undecided(lambda x: jnp.tanh(x.reshape(4, 16)), (64,), a=8)


def test_the_example_of_the_module():
    joined = SPLIT.apply(Tile("x", 0, "a")).structure

    assert joined.joins == {(0, 0, 8)}
    assert joined.atoms.sizes_of[0] == ((64,),)
    assert joined.passages == {(0, 0): [(1, 0), (1, 1)]}
    assert joined.unjoined is SPLIT.structure


def test_the_cut_goes_on_in_the_part_that_divides():
    plan = planned(SPLIT, Tile("x", 0, "a"))

    assert plan.arguments == [(((64, ("a",)),),)]
    assert plan.outputs == [(((4, ()),), ((16, ("a",)),))]


def test_nothing_is_joined_where_blocks_divide():
    assert undecided(lambda x: jnp.tanh(x.reshape(8, 8)), (64,), a=8).apply(Tile("x", 0, "a")).structure.joins == frozenset()


def test_classes_are_found_once_for_each_set_of_cuts():
    assert SPLIT.structure.classes() is SPLIT.structure.classes(frozenset())
