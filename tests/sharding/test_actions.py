"""Actions as data, and the addresses of values."""

import jax.numpy as jnp
import pytest
from tiny import undecided

import partir
from partir import Cut, GatherOnce, PathError, Pin, Prefer, ReduceIn, Replicate, StrategyError, Tile
from partir.sharding.actions import from_json, to_json

pytestmark = pytest.mark.jax

ACTIONS = [
    Tile("x", 0, "a"),
    Replicate("x", "a"),
    Pin("x", 0, "a,b"),
    Prefer("mlp", "x", 0, "a"),
    Cut("x", 0),
    GatherOnce("x"),
    ReduceIn("a", "float32"),
]


@pytest.mark.parametrize("action", ACTIONS, ids=lambda action: type(action).__name__)
def test_an_action_is_plain_data(action):
    assert from_json(to_json(action)) == action


def test_what_is_no_action_is_refused():
    with pytest.raises(StrategyError, match="dim must be int, not 'x'"):
        from_json({"kind": "tile", "value": "x", "dim": "x", "axis": "a"})


def test_addresses_are_paths_tags_and_ordinals():
    def fun(params, x):
        with partir.scope("mlp"):
            return jnp.sin(partir.tag(jnp.sin(x @ params["w"]), "hidden"))

    addresses = undecided(fun, {"w": (8, 4)}, (16, 8)).structure.addresses

    assert addresses.names == [
        "params/w", "x", "@forward:mlp/dot_general.0", "@forward:mlp/sine.0", "#hidden.0", "@forward:mlp/sine.1",
    ]  # fmt: skip
    assert [addresses.find(name) for name in addresses.names] == list(range(6))
    assert addresses.tagged("hidden") == [4]
    with pytest.raises(PathError, match="params/w"):
        addresses.find("params/v")
