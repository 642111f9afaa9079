"""A climb proposes one state after the other, and goes on from what is told to be better."""

from dataclasses import dataclass, field

import pytest

from partir.search.climb import Climb
from partir.search.environment import Decision

pytestmark = pytest.mark.jax

A, B, C = (Decision("tile", "x", name, ()) for name in "abc")


@dataclass
class InOrder:
    """Priors that never change: what is not taken, in order."""

    learnt: list[tuple[str, float]] = field(default_factory=list)

    def ordered(self, state):
        return [decision for decision in (A, B, C) if decision not in state]

    def learn(self, decision, gain):
        self.learnt.append((decision.name, round(gain, 6)))


def climbed(climb, worth):
    """All that a climb proposes, each as the names of its decisions."""
    seen = []
    while (state := climb.propose()) is not None:
        seen.append("".join(decision.name for decision in state))
        climb.tell(worth[seen[-1]])
    return seen


def test_the_example_of_the_class():
    priors = InOrder()

    assert climbed(Climb(priors, (A,)), {"a": 1.0, "ab": 0.9, "ac": 1.2, "acb": 1.1}) == ["a", "ab", "ac", "acb"]
    assert priors.learnt == [("b", -0.1), ("c", 0.2), ("b", -0.1)]


def test_groups_that_are_left_out_are_not_tried():
    assert climbed(Climb(InOrder(), (), frozenset("b")), {"": 0.0, "a": 1.0, "ac": 2.0}) == ["", "a", "ac"]


def test_a_start_that_nothing_betters_is_the_top():
    climb = Climb(InOrder(), ())

    assert climbed(climb, {"": 0.0, "a": -1.0, "b": -1.0, "c": -1.0}) == ["", "a", "b", "c"]
    assert climb.propose() is None
