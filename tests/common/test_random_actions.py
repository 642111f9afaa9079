"""Whatever is decided, the numbers stay: 100 random action sequences on small programs (`make test-all`: 200) equal the plain
function.

Each on 8 devices by execution, and its Core IR on the host by the interpreter.
"""

import functools
from typing import Any

import jax
import numpy as np
import pytest
from equal import assert_same, mesh_of
from programs import PROGRAMS
from random_actions import draw_actions, partitioned
from thinned import ALL

import partir
from partir.mesh import Mesh
from partir.runtime.interpret import interpret
from partir.sharding.actions import Action, Cut, Prefer, Replicate, Tile
from partir.sharding.assignment import Assignment

pytestmark = pytest.mark.jax

CHUNK = 5
CHUNKS = 40 if ALL else 20
"""Chunks of sequences: one test each, so that workers can share them. Every program is on every mesh."""

MESHES = ("4x2", "2x4", "2x2x2", "8")
NAMES = sorted(PROGRAMS)


@functools.cache
def traced(name: str, mesh: str) -> tuple[partir.Traced, Any, Any]:
    """A program imported in 64 bits, its arguments and what one device computes."""
    example = PROGRAMS[name]
    args = example.concrete(dtype="float64")
    return partir.jit(example.fun, mesh=mesh_of(mesh)).trace(*args), args, jax.jit(example.fun)(*args)


def assert_sequence_computes_the_same(seed: int) -> None:
    """Sequence `seed`: program and mesh in turn, actions drawn from the seed."""
    name, mesh = NAMES[seed % len(NAMES)], MESHES[(seed // len(NAMES)) % len(MESHES)]
    tr, args, expected = traced(name, mesh)
    actions = draw_actions(np.random.default_rng(seed), Assignment(tr.structure, Mesh.of(tr.mesh)))
    try:
        part = partitioned(tr, actions)
        assert_same(part(*args), expected)
        core = interpret(part.core, [*jax.tree.leaves(args), *tr.program.constants])
        assert_same(jax.tree.unflatten(tr.program.trees.results, core), expected)
    except Exception as error:
        said = "\n  ".join(map(repr, actions))
        error.add_note(f"sequence {seed}: {name} on {mesh}\n  {said}")
        raise


@pytest.mark.parametrize("chunk", range(CHUNKS))
def test_random_actions_keep_the_numbers(chunk, x64):
    for seed in range(chunk * CHUNK, (chunk + 1) * CHUNK):
        assert_sequence_computes_the_same(seed)


def test_the_sequences_cover_every_kind_of_action(x64):
    drawn: list[Action] = []
    both_orders: set[tuple[str, ...]] = set()
    for seed in range(CHUNK * CHUNKS):
        tr, _, _ = traced(NAMES[seed % len(NAMES)], "4x2")
        assignment = Assignment(tr.structure, Mesh.of(tr.mesh))
        actions = draw_actions(np.random.default_rng(seed), assignment)
        drawn += actions
        after = assignment.apply(*actions)
        both_orders |= {axes for atoms in after.argument_axes for axes in atoms if len(axes) > 1}

    assert {type(action) for action in drawn} == {Tile, Replicate, Prefer, Cut}
    assert any(getattr(action, "value", "").startswith("@") for action in drawn)
    assert both_orders == {("data", "model"), ("model", "data")}


@pytest.mark.parametrize("combine", ["add", "mul", "max", "min"])
def test_a_reduction_from_another_value_counts_it_once(x64, combine):
    """Right after an all_to_all, XLA makes one reduction per piece, and counts the value in each."""
    args = (np.arange(64.0).reshape(8, 8) / 32,)

    def fun(x):
        return jax.lax.reduce(x, np.float64(3), getattr(jax.lax, combine), [0])

    tr = partir.jit(fun, mesh=mesh_of("2x4")).trace(*args)
    part = partitioned(tr, [Tile("x", 0, "data"), Tile("x", 1, "model"), Tile("x", 1, "data")])
    assert_same(part(*args), fun(*args))
    assert_same(interpret(part.core, list(args))[0], fun(*args))
    rows = partitioned(tr, [Tile("x", 0, "data")])
    assert_same(rows(*args), fun(*args))
    assert rows.collectives == {"all_reduce": 1}  # so it can be done in pieces
