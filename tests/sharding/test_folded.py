"""A program with its repeated parts taken once says the same as the whole, and does not grow with depth."""

import functools
from collections import Counter
from dataclasses import replace

import jax
import pytest
from schedules import SCHEDULES

import partir
from partir import zoo
from partir.cost.estimate import model_of
from partir.cost.unfolding import Unfolding
from partir.sharding import folded, plan
from partir.sharding.assignment import Assignment
from partir.sharding.folded import Folded

pytestmark = pytest.mark.jax

MODELS = {
    "gpt": lambda: zoo.gpt(layers=5, d_model=32, heads=4, vocab=64, seq=8, batch=8),
    "gpt_tied_clipped": lambda: zoo.gpt(layers=4, d_model=32, heads=4, vocab=64, seq=8, batch=8, tied=True, clip=0.1),
    "mlp": lambda: zoo.mlp((16, 32, 32, 32, 32, 32, 8), batch=16),
    "partir_t32": lambda: zoo.partir_t32(5, 32, 4, 64, 8, 8),
}


@functools.cache
def traced(model: str) -> partir.Traced:
    example = MODELS[model]()
    mesh = partir.Mesh(data=4, model=2)
    return partir.jit(example.fun, mesh=mesh, donate_argnums=example.donate_argnums).trace(*example.args)


@functools.cache
def undecided(model: str) -> Folded:
    part = traced(model).partition([])
    return folded.fold(part.assignment)


def counted(parts: Folded, decided: Assignment) -> dict[str, int]:
    """The collectives of the whole program that a plan of its parts is priced by."""
    model = model_of(parts.whole.structure, partir.targets.get("tpu_v3"))
    moves = model.estimate(plan.make(decided), Unfolding.of(model.kernels, parts)).moved
    counts = Counter()
    for owed in moves.owed:
        for move in owed.moves():
            counts[move.kind] += move.times
    return dict(counts)


# An MLP has no sequence, and looks nothing up.
CASES = [(m, s) for m in MODELS for s in SCHEDULES if m != "mlp" or not s.endswith(("sequence", "embedding"))]


@pytest.mark.parametrize(("model", "schedule"), CASES)
def test_a_plan_on_the_parts_counts_what_the_whole_does(model, schedule):
    part = traced(model).partition(SCHEDULES[schedule])
    parts = undecided(model)

    decided_before = folded.fold(part.assignment)

    assert counted(parts, parts.assigned(part.assignment)) == part.collectives
    assert counted(decided_before, decided_before.start) == part.collectives


def test_a_deeper_model_has_no_more_parts():
    def parts(layers: int) -> int:
        example = zoo.gpt(layers=layers, d_model=32, heads=4, vocab=64, seq=8, batch=8)
        tr = partir.jit(example.fun, mesh=partir.Mesh(data=4, model=2)).trace(*example.args)
        made = folded.fold(Assignment(tr.structure, partir.Mesh(data=4, model=2)))
        assert len(made.row_of) == len(tr.structure.tables.rows)
        return len(made.structure.tables.rows)

    assert parts(12) == parts(6)


def test_loops_and_constraints_are_kept():
    mesh = jax.sharding.AbstractMesh((4, 2), ("data", "model"), axis_types=(jax.sharding.AxisType.Auto,) * 2)
    rows = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec("data", None))

    def loss(w, x):
        def layer(x, w):
            return jax.lax.with_sharding_constraint(jax.numpy.tanh(x @ w), rows), None

        return jax.lax.scan(layer, x, w)[0].sum()

    shapes = jax.ShapeDtypeStruct((6, 16, 16), "float32"), jax.ShapeDtypeStruct((8, 16), "float32")
    part = partir.jit(jax.grad(loss), mesh=mesh).trace(*shapes).partition([partir.Manual({"w": 2}, "model")])
    parts = folded.fold(part.assignment)

    assert part.collectives
    assert counted(parts, parts.start) == part.collectives


@pytest.mark.parametrize("layers", [range(5), [2], [1, 3]], ids=["all", "one", "two"])
@pytest.mark.parametrize("model", ["gpt", "mlp"])
def test_arguments_that_are_pinned_are_pinned_in_the_parts(model, layers):
    """Matrices laid across what the ops want, in some of the layers."""
    tr = traced(model)
    matrices = [a for a in tr.arguments if a.path[0] == "params" and "w" in a.path and len(a.shape) == 2]
    named = [a for a in matrices if model == "mlp" or "up" in a.path[1]]
    crossed = [named[n].path for n in layers]
    asked = {module: {"w": jax.P("model", "data")} for _, module, _ in crossed}
    traced_so = partir.Traced(tr.program, replace(tr.setup, in_shardings={"params": asked}))
    part = traced_so.partition([partir.DataParallel("data"), partir.Megatron("model")])
    start = traced_so.partition([])
    parts = folded.fold(start.assignment)

    specs = {a.path: layout for a, layout in zip(tr.arguments, part.plan.arguments, strict=True)}
    assert all([axes for ((_, axes),) in specs[path]] == [("model",), ("data",)] for path in crossed)
    assert counted(parts, parts.start) == start.collectives
    assert counted(parts, parts.assigned(part.assignment)) == part.collectives
    decided_before = folded.fold(part.assignment)
    assert counted(decided_before, decided_before.start) == part.collectives
