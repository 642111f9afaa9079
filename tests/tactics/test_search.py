"""Search as a tactic: it needs a target, and leaves a program as it is where nothing is better."""

import jax.numpy as jnp
import pytest
from tiny import undecided

import partir
from partir import Search, TargetError
from partir.search import Random

pytestmark = pytest.mark.jax

START = undecided(lambda w, x: w - x.T @ jnp.tanh(x @ w), (1024, 1024), (4096, 1024), a=4)


def test_it_decides_by_its_own_target_or_that_of_the_partition():
    by_own = Search("a", Random(episodes=10), target="tpu_v3").actions(START)
    by_given = Search("a", Random(episodes=10)).actions_on(START, partir.targets.get("tpu_v3"))

    assert by_own == by_given
    assert len(by_own) > 0


def test_without_a_target_it_says_so():
    with pytest.raises(TargetError, match="has no target to judge by"):
        Search("a").actions(START)


def test_a_filter_limits_it():
    search = Search("a", Random(episodes=10), filter=lambda decision: decision.name == "x:0", target="tpu_v3")

    assert {action.value for action in search.actions(START)} <= {"x"}
    assert search.result is not None
    assert search.result.finished
