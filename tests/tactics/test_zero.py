"""ZeRO knows by use what accumulates gradients: by no name, and no average that decays is taken for one."""

from typing import Any

import jax
import jax.numpy as jnp
import optax
import pytest
from equal import assert_same, mesh_of

import partir
from partir import DataParallel, ZeRO
from partir.sharding.roles import accumulators_of, roles_of

pytestmark = pytest.mark.jax

P = jax.P

PARAMS = {"w1": jax.ShapeDtypeStruct((16, 32), "float32"), "w2": jax.ShapeDtypeStruct((32, 16), "float32")}
X = jax.ShapeDtypeStruct((64, 16), "float32")


def loss(params, x):
    return jnp.mean((jnp.tanh(x @ params["w1"]) @ params["w2"]) ** 2)


def by_optax(optimizer: optax.GradientTransformation | optax.MultiSteps):
    """A step with an optimizer, and the shapes of its arguments."""

    def step(params, opt_state, x):
        gradients = jax.grad(loss)(params, x)
        updates, opt_state = optimizer.update(gradients, opt_state, params)
        return optax.apply_updates(params, updates), opt_state

    return step, (PARAMS, jax.eval_shape(optimizer.init, PARAMS), X)


def summed(params, opt, x):
    """Gradients are summed over four steps; momentum of those sums."""
    gradients = jax.grad(loss)(params, x)
    sums = jax.tree.map(jnp.add, opt["grad_sum"], gradients)
    emit = opt["n"] % 4 == 3
    moments = jax.tree.map(lambda m, s: jnp.where(emit, 0.9 * m + s, m), opt["moments"], sums)
    params = jax.tree.map(lambda p, m: jnp.where(emit, p - 0.1 * m, p), params, moments)
    sums = jax.tree.map(lambda s: jnp.where(emit, 0, s), sums)
    return params, {"grad_sum": sums, "moments": moments, "n": opt["n"] + 1}


def summed_by_branch(params, opt, x):
    """The same by a `cond`, the sums in another dtype."""
    gradients = jax.grad(loss)(params, x)
    sums = jax.tree.map(lambda s, g: s + g.astype(s.dtype), opt["grad_sum"], gradients)

    def update():
        new = jax.tree.map(lambda p, s: p - 0.1 * s.astype(p.dtype), params, sums)
        return new, jax.tree.map(jnp.zeros_like, sums)

    params, sums = jax.lax.cond(opt["n"] % 4 == 3, update, lambda: (params, sums))
    return params, {"grad_sum": sums, "n": opt["n"] + 1}


def summed_in_a_loop(params, grad_sum, xs):
    """Micro-batches are summed onto what was there."""
    return jax.lax.scan(lambda s, x: (jax.tree.map(jnp.add, s, jax.grad(loss)(params, x)), None), grad_sum, xs)[0]


COUNT = jax.ShapeDtypeStruct((), "int32")
HALF = jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape, "bfloat16"), PARAMS)

ACCUMULATING: dict[str, Any] = {
    "running mean": (*by_optax(optax.MultiSteps(optax.adam(1e-3), 4)), "acc_grads"),
    "sum": (*by_optax(optax.MultiSteps(optax.sgd(1e-3, momentum=0.9), 4, use_grad_mean=False)), "acc_grads"),
    "clipped": (*by_optax(optax.chain(optax.clip_by_global_norm(1.0), optax.MultiSteps(optax.adam(1e-3), 4))), "acc_grads"),
    "skipping": (*by_optax(optax.MultiSteps(optax.adam(1e-3), 4, should_skip_update_fn=optax.skip_not_finite)), "acc_grads"),
    "by hand": (summed, (PARAMS, {"grad_sum": PARAMS, "moments": PARAMS, "n": COUNT}, X), "grad_sum"),
    "by a branch": (summed_by_branch, (PARAMS, {"grad_sum": HALF, "n": COUNT}, X), "grad_sum"),
    "in a loop": (summed_in_a_loop, (PARAMS, PARAMS, jax.ShapeDtypeStruct((4, 64, 16), "float32")), "grad_sum"),
}


@pytest.mark.parametrize("case", ACCUMULATING)
def test_what_gradients_are_added_to_is_an_accumulator(case):
    fun, args, name = ACCUMULATING[case]
    tr = partir.jit(fun, mesh=partir.Mesh(data=8)).trace(*args)

    found = [tr.arguments[i].path for i in accumulators_of(tr.structure)]

    assert [path[-1] for path in found] == ["w1", "w2"]
    assert all(name in path for path in found)


AVERAGES = {
    "adam": optax.adam(1e-3),
    "momentum": optax.sgd(1e-2, momentum=0.9),
    "adagrad": optax.adagrad(0.1),
    "lion": optax.lion(1e-3),
    "rmsprop": optax.rmsprop(1e-3),
    "adadelta": optax.adadelta(0.1),
    "given decay": optax.inject_hyperparams(optax.adam)(learning_rate=1e-3),
}


@pytest.mark.parametrize("name", AVERAGES)
def test_an_average_that_decays_is_none(name):
    fun, args = by_optax(AVERAGES[name])

    assert accumulators_of(partir.jit(fun, mesh=partir.Mesh(data=8)).trace(*args).structure) == []


def test_an_average_written_as_an_addition_is_none():
    def step(params, moments, x):
        gradients = jax.grad(loss)(params, x)
        moments = jax.tree.map(lambda m, g: m + 0.1 * (g - m), moments, gradients)
        return jax.tree.map(lambda p, m: p - m, params, moments), moments

    assert accumulators_of(partir.jit(step, mesh=partir.Mesh(data=8)).trace(PARAMS, PARAMS, X).structure) == []


@pytest.mark.parametrize("mesh", ["8", "4x2"])
def test_stage_one_keeps_accumulators_whole_whatever_they_are_called(mesh, x64, rng):
    args = jax.tree.map(
        lambda leaf: rng.standard_normal(leaf.shape) if leaf.dtype != "int32" else jnp.int32(3),
        ACCUMULATING["by hand"][1],
    )
    tr = partir.jit(summed, mesh=mesh_of(mesh)).trace(*args)

    one, two = (tr.partition([DataParallel("data"), ZeRO("data", stage=stage)]) for stage in (1, 2))

    assert jax.tree.leaves(one.in_specs[1]["grad_sum"], is_leaf=lambda x: isinstance(x, P)) == [P(), P()]
    assert P("data") in jax.tree.leaves(one.in_specs[1]["moments"], is_leaf=lambda x: isinstance(x, P))
    assert P("data") in jax.tree.leaves(two.in_specs[1]["grad_sum"], is_leaf=lambda x: isinstance(x, P))
    assert_same(one(*args), jax.jit(summed)(*args))


def test_what_a_loop_only_adds_to_is_no_parameter():
    fun, args, _ = ACCUMULATING["in a loop"]
    tr = partir.jit(fun, mesh=partir.Mesh(data=8)).trace(*args)

    assert [tr.arguments[i].name for i in roles_of(tr.structure).parameters] == ["params/w1", "params/w2"]
