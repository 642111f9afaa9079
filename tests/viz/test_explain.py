"""How a value got its sharding, what differs between two partitionings, and functions that follow one."""

import functools
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from equal import assert_same, mesh_of

import partir
from partir import DataParallel, Megatron, PathError, ProgramError, ZeRO, zoo

pytestmark = pytest.mark.jax

MODEL = zoo.gpt(layers=2, d_model=32, heads=4, vocab=64, seq=8, batch=8)
BOTH = [DataParallel("data"), Megatron("model")]


@functools.cache
def traced() -> partir.Traced:
    return partir.jit(MODEL.fun, mesh=mesh_of("4x2"), donate_argnums=MODEL.donate_argnums).trace(*MODEL.args)


@functools.cache
def part(stage: int | None) -> partir.Partitioned:
    return traced().partition(BOTH if stage is None else [*BOTH, ZeRO("data", stage=stage)])


def rows_of(table, what):
    return [row[2] for row in table.rows if row[1] == what]


def test_a_parameter_says_who_cut_each_dim_and_what_each_collective_is_for():
    found = part(3).explain("params/layer_0/mlp/up/w")

    assert rows_of(found, "sharded as") == ["P('data', 'model'), 2.05 kB of 16.4 kB on each device"]
    assert "dim 0 (32), by ZeRO('data', stage=3)" in rows_of(found, 'on "data"')[0]
    assert "dim 1 (128), by Megatron('model')" in rows_of(found, 'on "model"')[0]
    gathers = rows_of(found, "all_gather")
    assert len(gathers) == 2
    assert "[backward]" not in gathers[0]
    assert "[backward]" in gathers[1]
    assert re.search(r"its gradient: dot_general in .*mlp/up \[backward\] \(gpt.py:\d+\)", rows_of(found, "reduce_scatter")[0])


def test_an_argument_that_is_whole_says_why():
    pinned = part(2).explain("params/layer_0/mlp/up/w")
    untouched = part(None).explain("params/embed")

    assert rows_of(pinned, 'on "data"') == ["replicated: kept so by ZeRO('data', stage=2)"]
    assert rows_of(untouched, 'on "model"') == ["replicated: no decision shards it"]


def test_a_size_that_does_not_divide_is_the_reason():
    shapes = jax.ShapeDtypeStruct((6, 8), "float32"), jax.ShapeDtypeStruct((8,), "float32")
    tr = partir.jit(lambda x, y: (x * 2, y * 2), mesh=partir.Mesh(data=4)).trace(*shapes)

    whole = tr.partition([DataParallel("data")]).explain("x")

    assert rows_of(whole, 'on "data"') == [
        "replicated: dim 0 (6) does not divide by 4, asked for by DataParallel('data') (Tile dim 0 of x)"
    ]


def test_inner_values_and_tags_can_be_asked_for():
    def f(x, w):
        return jnp.sum(partir.tag(jnp.tanh(x @ w), "hidden"))

    shapes = jax.ShapeDtypeStruct((8, 16), "float32"), jax.ShapeDtypeStruct((16, 32), "float32")
    made = partir.jit(f, mesh=partir.Mesh(data=4)).trace(*shapes).partition([DataParallel("data")])

    assert rows_of(made.explain("hidden"), "sharded as")[0].startswith("P('data')")
    with pytest.raises(PathError, match="no argument matches"):
        made.explain("nowhere")


def test_what_differs_between_two_partitionings():
    rows = {row[0]: row[1:] for row in partir.diff(part(None), part(3)).rows}

    assert rows["params/layer_{0,1}/mlp/up/w"] == ("P(None, 'model')", "P('data', 'model')")
    assert not any(name.startswith(("opt_state/0/nu", "result")) for name in rows)
    assert rows["all_gather"][0] == "0"
    assert "peak memory" in rows
    assert "params/layer_{0,1}/attention/query/b" not in rows


def test_partitionings_of_two_functions_have_no_difference_to_show():
    other = partir.jit(lambda x: x * 2, mesh=mesh_of("4x2")).trace(jax.ShapeDtypeStruct((8,), "float32"))

    with pytest.raises(ProgramError, match="not partitionings of one function"):
        partir.diff(part(None), other.partition([DataParallel("data")]))


def test_an_init_function_makes_its_results_where_the_step_wants_them():
    init = part(3).follow(lambda key: MODEL.init(key), jax.random.key(0))

    params, opt_state = init(jax.random.key(0))

    expected = jax.jit(MODEL.init)(jax.random.key(0))
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-8), (params, opt_state), expected)
    assert init.out_specs == part(3).in_specs[:2]


def test_an_eval_function_takes_the_parameters_as_they_lie(x64):
    args = MODEL.concrete(dtype="float64")
    step = partir.jit(MODEL.fun, mesh=mesh_of("4x2"), schedule=[*BOTH, ZeRO("data", stage=3)]).trace(*args).partition()

    def loss(params, batch):
        return MODEL.fun(params, args[1], batch)[2]

    evaluate = step.follow(loss, args[0], args[2])

    assert evaluate.in_specs == (step.in_specs[0], step.in_specs[2])
    assert_same(evaluate(args[0], args[2]), jax.jit(loss)(args[0], args[2]))
