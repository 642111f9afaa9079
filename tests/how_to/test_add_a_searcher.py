"""docs/how-to/add-a-searcher.md: the searcher on the page keeps what the page promises."""

import functools

import pytest
from how_to_pages import code_of, names_of

import partir
from partir import zoo
from partir.search import Environment, Exhaustive

pytestmark = pytest.mark.jax

ANNEALING = names_of("add-a-searcher")["Annealing"]


@functools.cache
def traced() -> partir.Traced:
    layer = zoo.mlp((256, 512), batch=512, bias=False)
    return partir.jit(layer.fun, mesh=partir.Mesh(data=4), donate_argnums=layer.donate_argnums).trace(*layer.args)


def environment() -> Environment:
    """A small one, new each time: prices are not shared between tests."""
    search = partir.Search("data", target=partir.targets.get("tpu_v3"))
    return search.environment(traced().partition([]).assignment)


def test_fits_on_a_screen():
    assert len(code_of("add-a-searcher").splitlines()) <= 40


def test_finds_the_exhaustive_optimum():
    best = Exhaustive().search(environment())

    found = ANNEALING(episodes=200).search(environment())

    assert found.price.cost == best.price.cost
    assert found.price.cost < environment().price(()).cost


def test_keeps_its_budget():
    env = environment()

    result = ANNEALING(episodes=20).search(env)

    assert env.evaluations <= 20 + 1 + len(result.state)  # the start, and looking which decisions of the best do nothing


def test_the_same_seed_finds_the_same():
    first, second = (ANNEALING(episodes=50, seed=3).search(environment()) for _ in range(2))

    assert (first.state, first.evaluations) == (second.state, second.evaluations)
