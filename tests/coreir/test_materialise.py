"""Core IR is written from a plan and read back, through text, to the assignment it is written from."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import PartitionSpec as P
from programs import PROGRAMS
from zoo_cases import CASES, MODELS

import partir
from partir.coreir.erase_loops import erase_loops
from partir.coreir.materialise import materialise
from partir.coreir.read import read_core
from partir.dialect.text import parse, to_text
from partir.frontend.trace import trace
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


def assert_reads_as(read: Assignment, written: Assignment) -> None:
    """The same actions, in the same order, and so the same at every argument and op."""
    assert (read.mesh, read.actions, read.outputs) == (written.mesh, written.actions, written.outputs)
    assert read.same_effect(written)
    assert plan.make(read).outputs == plan.make(written).outputs


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
            assert_reads_as(read, assignment)
            assert plan.make(read).collectives == plan.make(assignment).collectives
        except BaseException as error:
            error.add_note(f"{name}, seed {seed}: {assignment.actions}\nread as {read.actions}")
            raise


@functools.cache
def traced(model: str) -> partir.Traced:
    example = MODELS[model]()
    return partir.jit(example.fun, mesh=Mesh(data=4, model=2), donate_argnums=example.donate_argnums).trace(*example.args)


@pytest.mark.parametrize(
    ("model", "schedule"), [pytest.param(*case, marks=pytest.mark.slow if case[0] == "unet" else ()) for case in CASES]
)
def test_the_schedules_of_the_zoo_read_back(model, schedule):
    part = traced(model).partition(CASES[model, schedule])

    read = read_core(parse(to_text(part.core)))

    assert_reads_as(read, part.assignment)
    assert plan.make(read).collectives == part.collectives
    assert read_core(part.core_after(0)).actions == part.applied[0].assignment.actions


def test_fixed_shardings_read_back():
    def step(w, x):
        return jnp.tanh(x @ w), w * 2

    traced = partir.jit(
        step,
        mesh=Mesh(data=4, model=2, one=1),
        in_shardings=(P(None, "model"), None),
        out_shardings=(P(("model", "data")), P("one", None)),
    ).trace(*[jax.ShapeDtypeStruct((16, 16), "float32")] * 2)
    part = traced.partition([partir.DataParallel("data")])
    assert part.assignment.outputs

    text = to_text(part.core)
    read = read_core(parse(text))

    assert_reads_as(read, part.assignment)
    assert 'partir.fixed = #sdy.sharding<@mesh, [{"model", "data"}, {}]>' in text
    assert to_text(core_of(read)) == text


@pytest.mark.parametrize("constraint", [P("model"), P()])
def test_what_the_user_said_reads_back_once(constraint):
    def step(x):
        return partir.constrain(jnp.tanh(x), constraint) + 1

    traced = partir.jit(step, mesh=Mesh(data=4, model=2)).trace(jax.ShapeDtypeStruct((16, 16), "float32"))
    part = traced.partition([partir.DataParallel("data")])

    assert_reads_as(read_core(parse(to_text(part.core))), part.assignment)


def test_the_program_comes_back_with_names_state_and_rules():
    example = PROGRAMS["tied_embedding_step"]
    program = trace(example.fun, example.args, {}, partir.frontend.trace.Options(donate_argnums=(0,)))
    assignment = Assignment(Structure.of(program), MESHES[0]).apply(Tile("params/embed", 0, "data"))

    back = erase_loops(parse(to_text(core_of(assignment)))).program

    assert back.signature.state == program.signature.state != ()
    for ours, theirs in zip(back.signature.arguments, program.signature.arguments, strict=True):
        assert (ours.path, ours.role, ours.donated, ours.shape) == (theirs.path, theirs.role, theirs.donated, theirs.shape)
    assert [op.name for op in back.body.ops] == [op.name for op in program.body.ops]
    assert all(a.attributes == b.attributes for a, b in zip(back.body.ops, program.body.ops, strict=True))
    assert all(a.properties == b.properties for a, b in zip(back.body.ops, program.body.ops, strict=True))
