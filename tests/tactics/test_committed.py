"""Arguments that are on the devices already stay as they came in, unless the user asks for another layout; it is said."""

import logging
from types import SimpleNamespace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AxisType, Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

import partir
from partir import DataParallel, Manual, Replicate, Search
from partir.tactics.other_meshes import layout_over

pytestmark = pytest.mark.jax

LINE = jax.make_mesh((8,), ("d",), axis_types=(AxisType.Auto,))
GRID = jax.make_mesh((4, 2), ("x", "y"), axis_types=(AxisType.Auto,) * 2)
W, X = np.linspace(-1, 1, 32 * 16, dtype="float32").reshape(32, 16), np.sin(np.arange(64 * 32, dtype="float32")).reshape(64, 32)
"""The parameters are `params`: state by name, which no tactic takes for a batch."""


def forward(params: Any, x: Any) -> Any:
    return jnp.tanh(x @ params)


def step(params: Any, x: Any) -> Any:
    return params - 0.1 * jax.grad(lambda w: (forward(w, x) ** 2).mean())(params), (x**2).sum()


def put(value: Any, *spec: Any, mesh: Any = LINE) -> jax.Array:
    return jax.device_put(value, NamedSharding(mesh, P(*spec)))


def planned(fun: Any, *args: Any, mesh: Any = LINE, schedule: Any = (), **options: Any) -> partir.Partitioned:
    return partir.jit(fun, mesh=mesh, schedule=list(schedule), **options).trace(*args).partition()


# ---- kept


def test_committed_layout_is_kept_and_said():  # CASES d12
    part = planned(forward, W, put(X, "d"))

    assert part.in_specs == (P(), P("d"))
    assert part.committed == ["x came in as P('d') and stays so"]
    assert "  x came in as P('d') and stays so" in str(part.report())
    assert part.collectives == {}
    np.testing.assert_allclose(np.asarray(part(W, put(X, "d"))), forward(W, X), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(
    ("shape", "dtype", "spec", "mesh"),
    [
        ((16,), "int32", ("d",), LINE),
        ((4, 16, 2), "bfloat16", (None, "d"), LINE),
        ((8, 6, 4), "float16", ("x", None, "y"), GRID),
        ((16, 4), "bool", (("y", "x"),), GRID),
        ((16, 4), "complex64", ("y",), GRID),
    ],
    ids=str,
)
def test_committed_layout_is_kept_whatever_the_value(shape, dtype, spec, mesh):
    value = (np.arange(np.prod(shape)) % 2).astype(dtype).reshape(shape)

    part = planned(jnp.negative if dtype != "bool" else jnp.logical_not, put(value, *spec, mesh=mesh), mesh=mesh)

    assert part.in_specs == part.out_specs or part.in_specs == (part.out_specs,)
    assert part.in_specs == (P(*spec),)


def test_committed_layouts_of_a_training_step_are_kept():
    expected = jax.jit(step)(W, X)

    for params, x in ((put(W, "d"), X), (W, put(X, "d")), (put(W, None, "d"), put(X)), (put(W), put(X, "d"))):
        part = planned(step, params, x)

        lies = dict(zip(("params", "x"), part.in_specs, strict=True))
        for name, value in (("params", params), ("x", x)):
            if isinstance(value, jax.Array):
                assert lies[name] == P(*spec_of(value))
        for got, wanted in zip(part(params, x), expected, strict=True):
            np.testing.assert_allclose(np.asarray(got), np.asarray(wanted), rtol=1e-5, atol=1e-6)


def spec_of(value: jax.Array) -> P:
    return value.sharding.spec


def test_shape_with_a_sharding_is_kept():
    shape = jax.ShapeDtypeStruct(X.shape, X.dtype, sharding=NamedSharding(LINE, P("d")))
    abstract = jax.ShapeDtypeStruct(X.shape, X.dtype, sharding=NamedSharding(LINE.abstract_mesh, P(None, "d")))

    assert planned(forward, W, shape).in_specs == (P(), P("d"))
    assert planned(jnp.sin, abstract).in_specs == (P(None, "d"),)


def test_typed_keys_are_kept():
    keys = jax.device_put(jax.random.split(jax.random.key(0), 16), NamedSharding(LINE, P("d")))

    part = planned(lambda keys: jax.vmap(lambda k: jax.random.normal(k, (4,)))(keys), keys)

    assert part.in_specs == (P("d"),)
    assert part.committed == ["keys came in as P('d') and stays so"]


def test_layout_over_another_mesh_of_the_same_devices_is_kept():
    assert planned(forward, W, put(X, ("x", "y"), mesh=GRID)).in_specs == (P(), P("d"))
    assert planned(forward, W, put(X, "d"), mesh=GRID).in_specs == (P(), P(("x", "y")))


def test_layout_that_is_no_named_one_is_read_by_its_pieces():
    named = NamedSharding(GRID, P("y", "x"))
    other = SimpleNamespace(
        devices_indices_map=named.devices_indices_map, shard_shape=named.shard_shape, num_devices=named.num_devices
    )

    assert layout_over(other, (16, 8), partir.Mesh(x=4, y=2)) == P("y", "x")
    assert layout_over(other, (16, 8), partir.Mesh(d=8)) is None
    assert layout_over(other, (16, 8), partir.Mesh(d=16)) is None


def test_layout_that_no_axes_can_say_is_named():
    few = Mesh(np.array(jax.devices()[:4]), ("d",))
    halves = planned(forward, W, put(X, "x", mesh=GRID))
    backwards = planned(forward, W, put(X, "d", mesh=Mesh(np.array(jax.devices()[::-1]), ("d",))))

    assert halves.in_specs == backwards.in_specs == (P(), P())
    assert halves.committed == ["x came in as P('x') over Mesh(x=4, y=2) and lies as P(): no axes of Mesh(d=8) cut alike"]
    (line,) = backwards.committed
    assert "over Mesh(d=8) on devices 7, 6, 5, 4, 3, 2, 1, 0 and lies as P()" in line
    np.testing.assert_allclose(
        np.asarray(partir.jit(forward, mesh=LINE, schedule=[])(W, put(X, "d", mesh=few))), forward(W, X), 1e-5, 1e-6
    )


@pytest.mark.parametrize("place", [lambda x: x, jnp.array, lambda x: jax.device_put(x, jax.devices()[3])])
def test_others_are_placed_freely(place):
    part = planned(forward, place(W), place(X))

    assert part.committed == []
    assert part.in_specs == (P(), P())


# ---- decided otherwise


def test_tactic_decides_and_it_is_said():
    part = planned(forward, put(W), put(X, None, "d"), schedule=[DataParallel("d")])

    assert part.in_specs == (P(), P("d"))
    assert part.committed == [
        "x came in as P(None, 'd') and lies as P('d'): DataParallel('d') decides it",
        "params came in as P() and stays so",
    ]
    assert "  x came in as P(None, 'd') and lies as P('d'): DataParallel('d') decides it" in str(part.report())


def test_tactic_that_keeps_an_argument_whole_decides_it():
    whole = planned(forward, put(W, None, "d"), put(X, "d"), schedule=[Replicate("params", "d"), Manual({"x": P(None, "d")})])

    assert whole.in_specs[0] == P()
    assert "params came in as P(None, 'd') and lies as P(): Replicate(value='params', axis='d') decides it" in whole.committed


def test_search_decides_all_arguments():
    part = partir.jit(forward, mesh=LINE, target="tpu_v3").trace(put(W), put(X, None, "d")).partition([Search("d")])

    assert all("Search('d') decides it" in line or "stays so" in line for line in part.committed)
    assert len(part.committed) == 2
    assert part.free == frozenset()


def test_in_shardings_decide_and_it_is_said():
    part = planned(forward, put(W), put(X, None, "d"), in_shardings=(None, P("d")))

    assert part.in_specs == (P(), P("d"))
    assert part.committed[0] == "x came in as P(None, 'd') and lies as P('d'): in_shardings decides it"


def test_strategy_remembers_what_was_kept(tmp_path):
    part = planned(forward, W, put(X, "d"))
    part.strategy.save(tmp_path / "s.json")

    again = planned(forward, W, X, schedule=[partir.load_strategy(tmp_path / "s.json")])

    assert again.in_specs == (P(), P("d"))


# ---- called


def plans_of(jitted: Any) -> int:
    return sum(map(len, jitted._cache.values()))


@pytest.mark.parametrize("schedule", [[], [DataParallel("d")]], ids=str)
def test_state_that_comes_back_as_planned_is_planned_once(schedule, caplog):
    jitted = partir.jit(step, mesh=LINE, schedule=schedule, donate_argnums=0)
    params = W
    for _ in range(3):
        params, _ = jitted(params, X)

    assert plans_of(jitted) == 1
    assert not [record for record in caplog.records if "comes in as" in record.getMessage()]


def test_first_call_keeps_a_committed_state_from_call_to_call():
    jitted = partir.jit(step, mesh=LINE, schedule=[], donate_argnums=0)
    params = put(W, "d")
    for _ in range(3):
        params, _ = jitted(params, put(X, "d"))
        assert params.sharding.spec == P("d")

    assert plans_of(jitted) == 1


def test_other_committed_layout_is_planned_anew():
    jitted = partir.jit(forward, mesh=LINE, schedule=[])

    specs = [jitted(W, x).sharding.spec for x in (X, put(X, "d"), X, put(X, "d"))]
    columns = jitted(put(W, None, "d"), X).sharding.spec

    assert [P(*spec) for spec in specs] == [P(), P("d"), P(), P("d")]
    assert columns == P(None, "d")
    assert plans_of(jitted) == 3


def test_layout_that_the_schedule_decides_otherwise_is_said_once(caplog):
    jitted = partir.jit(forward, mesh=LINE, schedule=[DataParallel("d")])
    jitted(W, X)
    with caplog.at_level(logging.WARNING, logger="partir"):
        for _ in range(3):
            np.testing.assert_allclose(np.asarray(jitted(W, put(X, None, "d"))), forward(W, X), rtol=1e-5, atol=1e-6)

    assert [record.getMessage() for record in caplog.records] == ["forward: x comes in as P(None, 'd') and is moved to P('d')"]
    assert plans_of(jitted) == 1


def test_partitioned_that_is_called_with_another_layout_says_so(caplog):
    part = planned(forward, W, X)
    with caplog.at_level(logging.WARNING, logger="partir"):
        part(W, put(X, "d"))

    assert [record.getMessage() for record in caplog.records] == ["forward: x comes in as P('d') and is moved to P()"]


def test_new_shapes_keep_their_committed_layouts():
    jitted = partir.jit(forward, mesh=LINE, schedule=[])
    jitted(W, put(X, "d"))

    assert P(*jitted(W, put(X[:32], None, "d")).sharding.spec) == P()
    assert jitted(put(W, None, "d"), X[:16]).sharding.spec == P(None, "d")


def test_explicit_axes():
    mesh = jax.make_mesh((8,), ("d",))

    result = partir.jit(forward, mesh=mesh, schedule=[])(W, put(X, "d", mesh=mesh))

    assert result.sharding.spec == P("d", None)


def test_following_function_takes_what_is_committed():
    part = planned(step, put(W, "d"), X)

    following = part.follow(lambda params, y: (params * 2, y + 1), W, put(X, None, "d"))

    assert following.in_specs == (P("d"), P(None, "d"))
