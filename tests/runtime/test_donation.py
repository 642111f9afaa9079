"""What is donated is used, or it is said by name why not; and nothing is given away twice."""

import warnings

import jax
import jax.numpy as jnp
import pytest
from equal import assert_same, mesh_of

import partir
from partir import DataParallel, ProgramError

pytestmark = pytest.mark.jax

P = jax.P


def shape(*dims, dtype="float32"):
    return jax.ShapeDtypeStruct(dims, dtype)


def warnings_of(fun, *args, mesh, schedule=(), **options):
    """What is said of donation when a function is planned, each warning as its lines."""
    tr = partir.jit(fun, mesh=mesh, donate_argnums=0, **options).trace(*args)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        tr.partition(list(schedule))
        tr.partition(list(schedule))
    return [str(warning.message).splitlines() for warning in caught]


MESH = partir.Mesh(x=4, y=2)


def test_state_that_comes_back_lying_otherwise_is_named_once():
    """Donated, cut over both axes, and asked back whole."""

    def step(state, x):
        return {"w": state["w"] + x.sum()}

    (found,) = warnings_of(
        step, {"w": shape(16, 8)}, shape(8), mesh=MESH, in_shardings=({"w": P("x", "y")}, None), out_shardings=P()
    )

    assert found == [
        "Some donated buffers were not usable: step has no results to put into them",
        "  where   state/w, float32[16, 8], is sharded as P('x', 'y'): result/w is sharded as P()",
        "  why     a result reuses a donated buffer if both have the same number of bytes on a device",
        "  try     give results the shardings of the arguments, or leave these out of donate_argnums",
    ]


def test_a_gradient_step_whose_parameter_comes_back_whole():
    def step(w, x):
        return w - jax.grad(lambda w: jnp.mean(jnp.tanh(jnp.einsum("bi,ijk->bjk", x, w)) ** 2))(w)

    (found,) = warnings_of(
        step,
        shape(16, 8, 4, dtype="bfloat16"),
        shape(64, 16, dtype="bfloat16"),
        mesh=partir.Mesh(x=2, y=2, z=2),
        in_shardings=(P("x", "y", "z"), None),
        out_shardings=P("x"),
    )

    assert "w, bfloat16[16, 8, 4], is sharded as P('x', 'y', 'z'): result is sharded as P('x')" in found[1]


def test_an_argument_of_which_no_result_has_the_shape():
    (found,) = warnings_of(lambda x: x.sum(), shape(16, 8), mesh=MESH, schedule=[DataParallel("x", inputs="x")])

    assert "x, float32[16, 8], is sharded as P('x'): no result has that shape and dtype" in found[1]


def test_many_are_counted():
    params = {f"w{i}": shape(16, 8) for i in range(10)}

    (found,) = warnings_of(lambda p: sum(w.sum() for w in p.values()), params, mesh=MESH)

    assert found[1].endswith("; and 2 more")


@pytest.mark.parametrize(
    ("fun", "here", "there"),
    [
        (lambda x: x + 1, P("x"), P("x")),
        (lambda x: x + 1, P("x"), P(None, "x")),
        (lambda x: (x + 1).astype("int32"), P("x", "y"), P("x", "y")),
        (lambda x: (x + 1).reshape(8, 32), P("x"), P("x")),
        (lambda x: (x.sum(), x * 2), P("x"), (P(), P("x"))),
    ],
    ids=["alike", "another dim", "another dtype", "another shape", "the second"],
)
def test_a_result_of_as_many_bytes_takes_the_buffer_and_nothing_is_said(fun, here, there):
    """What is said is what XLA does: a buffer is as good as another of its size."""
    mesh = mesh_of("4x2")
    names = {"x": "data", "y": "model"}

    def named(spec):
        return P(*(names.get(entry) for entry in spec))

    there = jax.tree.map(named, there, is_leaf=lambda spec: isinstance(spec, P))
    step = partir.jit(fun, mesh=mesh, schedule=[], donate_argnums=0, in_shardings=(named(here),), out_shardings=there)
    x = jax.device_put(jnp.ones((16, 16)), jax.NamedSharding(mesh, named(here)))

    with warnings.catch_warnings():
        warnings.simplefilter("error")
        step(x)

    assert x.is_deleted()


def test_state_that_is_not_given_away_is_not_spoken_of():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        partir.jit(lambda x: x + 1, mesh=MESH, in_shardings=(P("x"),), out_shardings=P()).trace(shape(16, 8)).partition([])


# ---- twice


def add(a, b):
    return a + b, b


@pytest.mark.parametrize("donate", [(0,), (1,), (0, 1)])
@pytest.mark.parametrize("is_placed", [True, False])
def test_one_array_as_two_arguments_of_which_one_is_donated(donate, is_placed):
    mesh = mesh_of("8")
    x = jnp.ones((16, 8))
    x = jax.device_put(x, jax.NamedSharding(mesh, P("data"))) if is_placed else x
    step = partir.jit(add, mesh=mesh, schedule=[DataParallel("data", inputs=["a", "b"])], donate_argnums=donate)

    with pytest.raises(ProgramError) as raised:
        step(x, x)

    said = {(0,): "the first is", (1,): "the second is", (0, 1): "both are"}[donate]
    assert str(raised.value).splitlines() == [
        f"add was given one array as a and as b, and {said} donated",
        "  why     a result overwrites the buffer of a donated argument",
        f"  try     a copy for one of them (x.copy()), or do not donate {'b' if donate == (1,) else 'a'}",
    ]
    assert not x.is_deleted()
    step(x, jnp.ones((16, 8)))


def test_a_gradient_step_whose_average_starts_as_the_parameters(rng, x64):
    """The usual way to get there: `average = params`. All pairs are named; a copy is the way out."""

    def step(params, average, x):
        gradients = jax.grad(lambda params: jnp.mean(jnp.tanh(x @ params["w"] + params["b"])))(params)
        params = jax.tree.map(lambda p, g: p - 0.1 * g, params, gradients)
        return params, jax.tree.map(lambda a, p: 0.9 * a + 0.1 * p, average, params)

    x = rng.standard_normal((64, 16))
    params = {"w": jnp.ones((16, 4)), "b": jnp.zeros(4)}
    expected = jax.jit(step)(params, params, x)
    jitted = partir.jit(step, mesh=mesh_of("4x2"), schedule=[DataParallel("data")], donate_argnums=(0, 1))

    with pytest.raises(ProgramError) as raised:
        jitted(params, params, x)
    assert "as params/b and as average/b, and both are donated" in str(raised.value)
    assert "as params/w and as average/w, and both are donated" in str(raised.value)

    found = jitted(params, jax.tree.map(jnp.copy, params), x)
    assert_same(found, expected)


def test_one_array_as_two_arguments_that_stay_is_no_error(x64):
    x = jnp.ones((16, 8))

    assert_same(partir.jit(add, mesh=mesh_of("8"), schedule=[DataParallel("data")])(x, x), add(x, x))


def test_within_an_outer_jit_donation_means_nothing(x64):
    step = partir.jit(add, mesh=mesh_of("8"), schedule=[DataParallel("data", inputs="b")], donate_argnums=0)

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        assert_same(jax.jit(lambda x: step(x, x))(jnp.ones((16, 8))), add(jnp.ones((16, 8)), jnp.ones((16, 8))))
