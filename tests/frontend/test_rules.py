"""Sharding rules, tested by running them: every op, cut along its dimension classes, equals one device."""

import itertools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from equal import assert_same, mesh_of
from op_programs_indexed import OPS

import partir
from partir.mesh import Mesh
from partir.sharding.actions import Action, Tile
from partir.sharding.assignment import Assignment

pytestmark = pytest.mark.jax

INTERMEDIATE = 4
"""How many of the classes that touch no argument are tried (a random-number generator has dozens)."""
PAIRS = 3
"""How many pairs of classes, on the two axes of the mesh, are tried for each op besides the classes alone."""

SLICEWISE = {
    "add": "x y",
    "erf": "x",
    "chlo": "x",
    "bitcast": "x",
    "batched_matmul": "x",
    "attention_scores": "q",
    "sort": None,
    "cholesky": "a",
    "top_k": "operand",
    "slice_block": "x",
    "pad_block": "x",
    "concatenate": "x",
    "embedding": "t",
    "embedding_odd_rows": None,
    "scatter_add": "t",
    "set_row": None,
    "convolution": None,
}


def assignment_of(traced: partir.Traced, *actions: Action) -> Assignment:
    return Assignment(traced.structure, Mesh.of(traced.mesh), actions)


def tiles_of(traced: partir.Traced) -> list[tuple[str, int]]:
    """A (value, dim) for each dimension class that some `Tile` can name: those of arguments, and some of the others."""
    assignment = assignment_of(traced)
    names, shapes = traced.structure.addresses.names, traced.structure.tables.shapes
    found: dict[int, tuple[str, int]] = {}
    for value, shape in enumerate(shapes):
        for dim in range(len(shape)):
            class_ = assignment.class_of(value, dim)
            if class_ is not None:
                found.setdefault(class_, (names[value], dim))
    tiles = list(found.values())
    inner = [tile for tile in tiles if tile[0].startswith("@")]
    outer = [tile for tile in tiles if tile not in inner]
    return outer + inner[:: max(1, len(inner) // INTERMEDIATE)][:INTERMEDIATE]


def assignments_of(tiles: list[tuple[str, int]]) -> list[list[Action]]:
    """Each class over one axis, or over both with the minor one first; then some pairs of classes, one axis each."""
    chosen: list[list[Action]] = []
    for number, (value, dim) in enumerate(tiles):
        axes = (("data",), ("model", "data"))[number % 2]
        chosen.append([Tile(value, dim, axis) for axis in axes])
    pairs = list(itertools.permutations(tiles, 2))
    order = np.random.default_rng(0).permutation(len(pairs))[:PAIRS]
    return chosen + [[Tile(*pairs[i][0], "data"), Tile(*pairs[i][1], "model")] for i in order]


def replayed(traced: partir.Traced, actions: list[Action]) -> partir.Partitioned:
    return traced.replay(partir.Strategy.of(assignment_of(traced, *actions)))


@pytest.mark.parametrize("name", OPS)
def test_each_class_of_an_op_can_be_cut(name: str, x64: None):
    fun, args = OPS[name]
    traced = partir.jit(fun, mesh=mesh_of("4x2")).trace(*args)
    expected = jax.jit(fun)(*args)

    for actions in assignments_of(tiles_of(traced)):
        try:
            assert_same(replayed(traced, actions)(*args), expected)
        except Exception as error:
            error.add_note(f"{name}: {actions}")
            raise
