"""Attention to a cache goes to the batch, between the heads before and after it."""

import jax.numpy as jnp
import pytest
from tiny import undecided

from partir import Cut, DataParallel, MultiQuery, NoEffectError, Prefer, Tile

pytestmark = pytest.mark.jax


def decode(cache, params, x):
    """One step: x [batch, width] attends to a cache [batch, length, width] that it is added to."""
    query = x @ params
    cache = cache + query[:, None]
    weights = jnp.einsum("bd,bld->bl", query, cache)
    return cache, jnp.einsum("bl,bld->bd", weights, cache)


def decoder(batch=8):
    return undecided(decode, (batch, 4, 8), (8, 8), (batch, 8), donated=(0,), a=2, b=2)


def test_a_cache_is_state_with_a_batch():
    assert decoder().roles.caches == ((0, 0),)


def test_the_batch_of_attention_is_cut_off_tiled_and_preferred():
    assignment = decoder().apply(*DataParallel("a").actions(decoder()))

    actions = MultiQuery("b").actions(assignment)

    cuts = [action for action in actions if isinstance(action, Cut)]
    assert cuts
    assert actions[: len(cuts)] == cuts
    assert actions[-2:] == [Tile("cache", 0, "b"), Prefer("*", "cache", 0, "b")]


def test_a_batch_that_does_not_divide_is_named():
    with pytest.raises(NoEffectError, match=r"the batch of no cache divides: cache \(7\) on 2 devices"):
        MultiQuery("b").actions(decoder(batch=7))


def test_a_program_without_caches_is_refused():
    with pytest.raises(NoEffectError, match="no state has a batch"):
        MultiQuery("b").actions(undecided(lambda x: x * 2, (8, 4)))
