"""Sharding rules, tested by running them: every op, cut along each of its dimension classes, equals one device."""

import itertools
from collections.abc import Iterator

import jax
import numpy as np
import pytest
from equal import assert_same, mesh_of
from op_programs_indexed import OPS

import partir
from partir.mesh import Mesh
from partir.sharding.actions import Action, Tile
from partir.sharding.assignment import Assignment

pytestmark = pytest.mark.jax

PAIRS = 5
"""How many pairs of classes, on the two axes of the mesh, are tried for each op besides every class alone."""


def tiles_of(traced: partir.Traced) -> list[tuple[str, int]]:
    """A (value, dim) for each dimension class that some `Tile` can name."""
    assignment = Assignment(traced.structure, Mesh.of(traced.mesh))
    names, shapes = traced.structure.addresses.names, traced.structure.tables.shapes
    found: dict[int, tuple[str, int]] = {}
    for value, shape in enumerate(shapes):
        for dim in range(len(shape)):
            class_ = assignment.class_of(value, dim)
            if class_ is not None:
                found.setdefault(class_, (names[value], dim))
    return list(found.values())


def assignments_of(tiles: list[tuple[str, int]]) -> Iterator[list[Action]]:
    """Each class over each axis and over both; then some pairs of classes, one axis each."""
    for value, dim in tiles:
        yield [Tile(value, dim, "data")]
        yield [Tile(value, dim, "model"), Tile(value, dim, "data")]
    pairs = list(itertools.permutations(tiles, 2))
    order = np.random.default_rng(0).permutation(len(pairs))[:PAIRS]
    for first, second in (pairs[i] for i in order):
        yield [Tile(*first, "data"), Tile(*second, "model")]


@pytest.mark.parametrize("name", OPS)
def test_each_class_of_an_op_can_be_cut(name, x64):
    fun, args = OPS[name]
    traced = partir.jit(fun, mesh=mesh_of("4x2")).trace(*args)
    expected = jax.jit(fun)(*args)

    for actions in assignments_of(tiles_of(traced)):
        strategy = partir.Strategy.of(Assignment(traced.structure, Mesh.of(traced.mesh)), actions)
        try:
            assert_same(traced.replay(strategy)(*args), expected)
        except Exception as error:
            error.add_note(f"{name}: {actions}")
            raise
