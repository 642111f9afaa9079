"""Core IR is written from a plan and read back, through text, to an assignment that decides the same."""

import functools

import numpy as np
import pytest
from programs import PROGRAMS

import partir
from partir.dialect.text import parse, to_text
from partir.frontend.trace import trace
from partir.lowering.materialise import materialise
from partir.lowering.read_core import read_core
from partir.lowering.strip import strip
from partir.mesh import Mesh
from partir.sharding import plan
from partir.sharding.actions import Action, Cut, Prefer, Replicate, Tile
from partir.sharding.assignment import Assignment
from partir.sharding.structure import Structure

pytestmark = pytest.mark.jax

MESHES = (Mesh(data=4, model=2), Mesh(data=2, model=4), Mesh(data=2, model=2, stage=2), Mesh(data=8))


@functools.cache
def structure_of(name: str) -> Structure:
    return Structure.of(trace(PROGRAMS[name].fun, PROGRAMS[name].args, {}))


def draw_actions(rng: np.random.Generator, assignment: Assignment) -> list[Action]:
    """A few decisions on arguments and intermediate values; few axes, so that they meet."""
    names, shapes = assignment.structure.addresses.names, assignment.structure.tables.shapes
    arguments = range(assignment.structure.tables.argument_count)
    actions: list[Action] = []
    for _ in range(int(rng.integers(1, 7))):
        pool = [v for v in (arguments if rng.random() < 0.5 else range(len(shapes))) if shapes[v]]
        value = int(rng.choice(pool))
        name, dim, axis = names[value], int(rng.integers(len(shapes[value]))), str(rng.choice(assignment.mesh.names))
        kind = rng.random()
        if kind < 0.7:
            actions.append(Tile(name, dim, axis))
        elif kind < 0.8:
            actions.append(Replicate(names[int(rng.choice(arguments))], axis))
        elif kind < 0.9:
            actions.append(Prefer("*", name, dim, axis))
        else:
            actions.append(Cut(name, dim))
    return actions


def core_of(assignment: Assignment):
    return materialise(plan.make(assignment))


def assert_decides_the_same(read: Assignment, written: Assignment) -> None:
    """At every argument and every op that decides; ops that follow lie as their operands do, whoever has a claim there.

    Whether an argument is cut along an inner part of a dim, which no sharding says, only its class tells: not where it is cut
    off from that.
    """
    assert plan.make(read).arguments == plan.make(written).arguments
    if not any(isinstance(action, Cut) for action in written.actions):
        assert read.argument_axes == written.argument_axes
    decides = np.array([row.kind == "claim" for row in written.structure.tables.rows])
    for axis in written.mesh.names:
        assert np.array_equal(read.winners[axis][decides], written.winners[axis][decides])


@pytest.mark.parametrize("name", PROGRAMS)
def test_any_actions_can_be_read_back_from_text(name):
    structure = structure_of(name)
    for seed in range(6):
        start = Assignment(structure, MESHES[seed % len(MESHES)])
        assignment = start.apply(*draw_actions(np.random.default_rng(seed), start))
        module = core_of(assignment)
        module.verify()
        text = to_text(module)

        read = read_core(parse(text))

        try:
            assert to_text(core_of(read)) == text
            assert_decides_the_same(read, assignment)
            assert plan.make(read).collectives == plan.make(assignment).collectives
        except BaseException as error:
            error.add_note(f"{name}, seed {seed}: {assignment.actions}\nread as {read.actions}")
            raise


def test_known_strategies_read_back_as_few_actions():
    example = partir.zoo.gpt(layers=2, d_model=32, heads=4, vocab=64, seq=16, batch=8)
    traced = partir.jit(example.fun, mesh=Mesh(data=4, model=2), donate_argnums=example.donate_argnums).trace(*example.args)
    schedule = [partir.DataParallel("data"), partir.Megatron("model"), partir.ZeRO("data", stage=3)]
    part = traced.partition(schedule)

    read = read_core(part.core)

    assert read.same_effect(part.assignment)
    assert plan.make(read).collectives == part.collectives
    assert len(read.actions) < 10
    assert len(read_core(part.core_after(0)).actions) == 1


def test_the_program_comes_back_with_names_state_and_rules():
    example = PROGRAMS["tied_embedding_step"]
    program = trace(example.fun, example.args, {}, partir.frontend.trace.Options(donate_argnums=(0,)))
    assignment = Assignment(Structure.of(program), MESHES[0]).apply(Tile("params/embed", 0, "data"))

    back = strip(parse(to_text(core_of(assignment)))).program

    assert back.signature.state == program.signature.state != ()
    for ours, theirs in zip(back.signature.arguments, program.signature.arguments, strict=True):
        assert (ours.path, ours.role, ours.donated, ours.shape) == (theirs.path, theirs.role, theirs.donated, theirs.shape)
    assert [op.name for op in back.body.ops] == [op.name for op in program.body.ops]
    assert all(a.attributes == b.attributes for a, b in zip(back.body.ops, program.body.ops, strict=True))
    assert all(a.properties == b.properties for a, b in zip(back.body.ops, program.body.ops, strict=True))
