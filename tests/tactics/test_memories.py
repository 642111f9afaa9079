"""What is kept in host memory stays there: arguments, results and state; inside a step it is refused by name."""

import inspect
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.ad_checkpoint import checkpoint_name
from jax.experimental.compute_on import compute_on
from jax.sharding import AxisType, NamedSharding
from jax.sharding import PartitionSpec as P

import partir
from partir import DataParallel, ProgramError

pytestmark = pytest.mark.jax

Space = jax.memory.Space
LINE = jax.make_mesh((8,), ("d",), axis_types=(AxisType.Auto,))
W, M, X = np.ones((32, 16), "float32"), np.zeros((32, 16), "float32"), np.sin(np.arange(64 * 32.0)).reshape(64, 32).astype("f4")


def host(*spec: Any, mesh: Any = LINE, kind: str = "pinned_host") -> NamedSharding:
    return NamedSharding(mesh, P(*spec), memory_kind=kind)


def step(params: Any, momentum: Any, x: Any) -> Any:
    """A training step whose momentum lives on the host, as JAX's own guide writes it."""
    gradient = jax.grad(lambda w: (jnp.tanh(x @ w) ** 2).mean())(params)
    momentum = 0.9 * jax.device_put(momentum, Space.Device) + gradient
    return params - momentum, momentum


def kinds(tree: Any) -> list[str]:
    return [leaf.sharding.memory_kind for leaf in jax.tree.leaves(tree)]


def assert_trains(jitted: Any, momentum: Any) -> None:
    """Three steps give what they give on one device, and the momentum is in host memory after each."""
    params, expected = W, (W, M)
    for _ in range(3):
        params, momentum = jitted(params, momentum, X)
        expected = jax.jit(step)(*expected, X)
        assert kinds((params, momentum)) == ["device", "pinned_host"]
    for here, there in zip((params, momentum), expected, strict=True):
        np.testing.assert_allclose(np.asarray(here), np.asarray(there), rtol=1e-5, atol=1e-6)
    assert sum(map(len, jitted._cache.values())) == 1


# ---- kept


@pytest.mark.parametrize("axis_type", [AxisType.Auto, AxisType.Explicit], ids=str)
@pytest.mark.parametrize("schedule", [[], [DataParallel("d")]], ids=str)
def test_state_in_host_memory_by_in_shardings(schedule, axis_type):
    mesh = jax.make_mesh((8,), ("d",), axis_types=(axis_type,))
    wanted = (None, host("d", mesh=mesh), None)

    jitted = partir.jit(step, mesh=mesh, schedule=schedule, in_shardings=wanted, donate_argnums=(0, 1))

    assert_trains(jitted, M)
    assert jitted(W, M, X)[1].sharding.is_equivalent_to(host("d", mesh=mesh), 2)


@pytest.mark.parametrize("place", [host("d"), host(None, "d"), Space.Host], ids=str)
def test_state_that_comes_from_host_memory_goes_back_there(place):
    jitted = partir.jit(step, mesh=LINE, schedule=[DataParallel("d", inputs="x")], donate_argnums=(0, 1))

    assert_trains(jitted, jax.device_put(M, place))


def test_donated_state_is_taken_in_host_memory():
    jitted = partir.jit(step, mesh=LINE, schedule=[], in_shardings=(None, host("d"), None), donate_argnums=(0, 1))
    momentum = jitted(W, M, X)[1]
    jitted(W, momentum, X)

    assert momentum.is_deleted()


@pytest.mark.parametrize("dtype", ["bfloat16", "int8", "bool"])
def test_result_in_host_memory_by_out_shardings(dtype):
    x = (np.arange(8 * 4 * 2) % 2).astype(dtype).reshape(8, 4, 2)
    jitted = partir.jit(
        lambda x: {"a": x, "b": x | x if dtype == "bool" else x + x}, mesh=LINE, schedule=[], out_shardings={"b": host("d")}
    )

    result = jitted(x)

    assert kinds(result) == ["device", "pinned_host"]
    assert result["b"].sharding.spec == P("d")
    np.testing.assert_array_equal(np.asarray(result["a"]), x)


def test_result_that_the_function_puts_in_host_memory():
    def f(x):
        return jax.device_put(jnp.sin(x), Space.Host), x.sum()

    inner = jax.jit(f)
    for fun in (f, inner, lambda x: inner(x * 1)):
        jitted = partir.jit(fun, mesh=LINE, schedule=[])
        assert kinds(jitted(X)) == kinds(jax.jit(fun)(X)) == ["pinned_host", "device"]


def test_gradient_of_what_is_in_host_memory():
    jitted = partir.jit(
        jax.value_and_grad(lambda w: (jax.device_put(w, Space.Device) ** 3).sum()),
        mesh=LINE,
        schedule=[],
        in_shardings=host(None, "d"),
        out_shardings=(None, host(None, "d")),
    )

    value, gradient = jitted(W)

    assert kinds((value, gradient)) == ["device", "pinned_host"]
    np.testing.assert_allclose(np.asarray(gradient), 3 * W**2)


def test_shape_in_host_memory():
    shape = jax.ShapeDtypeStruct(M.shape, M.dtype, sharding=host("d"))

    part = partir.jit(step, mesh=LINE, schedule=[], donate_argnums=(0, 1)).trace(W, shape, X).partition()

    assert [s.memory_kind for s in part.in_shardings] == ["device", "pinned_host", "device"]
    assert [s.memory_kind for s in part.out_shardings] == ["device", "pinned_host"]
    assert kinds(part(W, M, X)) == ["device", "pinned_host"]
    assert kinds(part.lower().compile()(*map(jax.device_put, (W, M, X), part.in_shardings))) == ["device", "pinned_host"]


def test_in_shardings_on_the_device_decide():
    jitted = partir.jit(step, mesh=LINE, schedule=[], in_shardings=(None, NamedSharding(LINE, P("d")), None), donate_argnums=1)

    traced = jitted.trace(W, jax.device_put(M, host("d")), X)

    assert kinds(jitted(W, jax.device_put(M, host("d")), X)) == ["device", "device"]
    assert traced.partition().committed == [
        "momentum came in as P('d') in pinned_host memory and lies as P('d'): in_shardings decides it"
    ]


def test_other_memory_is_planned_anew():
    jitted = partir.jit(step, mesh=LINE, schedule=[DataParallel("d", inputs="x")], donate_argnums=(0, 1))

    found = [kinds(jitted(W, m, X))[1] for m in (M, jax.device_put(M, host()), M, jax.device_put(M, host()))]

    assert found == ["device", "pinned_host", "device", "pinned_host"]
    assert sum(map(len, jitted._cache.values())) == 2


def test_under_an_outer_jit():
    jitted = partir.jit(step, mesh=LINE, schedule=[], in_shardings=(None, host("d"), None), donate_argnums=(0, 1))

    outer = jax.jit(lambda p, m, x: jitted(p, m, x))(W, M, X)

    assert kinds(outer) == ["device", "pinned_host"]


# ---- said and counted


def test_report_says_what_is_kept_in_host_memory():
    part = partir.jit(step, mesh=LINE, schedule=[], in_shardings=(None, host("d"), None), donate_argnums=(0, 1)).trace(W, M, X)

    text = str(part.partition().report())

    assert "1 argument in pinned_host memory (momentum): 256 B a device are moved to it as a step begins" in text
    assert "1 result in pinned_host memory (result/1): 256 B a device are moved there as a step ends" in text
    assert "P('d') in pinned_host" in str(part.partition().specs())


def test_host_memory_is_not_the_devices():
    def far(params, momentum, x):
        loss, gradient = jax.value_and_grad(lambda w: (jnp.tanh(x @ w) ** 2).mean())(params)
        return params - momentum, momentum + gradient, loss

    shapes = [jax.ShapeDtypeStruct(s, "float32") for s in ((1024, 512), (1024, 512), (4096, 1024))]

    def estimated(sharding):
        options = {"in_shardings": (None, sharding, None), "donate_argnums": (0, 1), "target": "h100"}
        return partir.jit(far, mesh=LINE, schedule=[], **options).trace(*shapes).partition().estimate

    here, there = estimated(NamedSharding(LINE, P())), estimated(host())

    assert here.argument_bytes - there.argument_bytes == 4 * 1024 * 512
    assert there.result_bytes == here.result_bytes
    assert there.peak_bytes < here.peak_bytes
    assert "momentum" in {r.name for r in here.at_peak}
    assert "momentum" not in {r.name for r in there.at_peak}


# ---- refused


def offloaded(x):
    policy = jax.checkpoint_policies.save_and_offload_only_these_names(
        names_which_can_be_saved=[], names_which_can_be_offloaded=["h"], offload_src="device", offload_dst="pinned_host"
    )
    return jax.grad(jax.checkpoint(lambda x: jnp.sin(checkpoint_name(jnp.sin(x), "h")).sum(), policy=policy))(x)


def in_and_out(x):
    return jax.device_put(jax.device_put(jnp.sin(x), Space.Host), Space.Device) + 1


def in_a_scan(x):
    return jax.lax.scan(lambda c, row: (c + row.sum(), jax.device_put(row, Space.Host)), 0.0, x)


def by_a_constraint(x):
    return jax.lax.with_sharding_constraint(x * 2, host("d"))


@pytest.mark.parametrize("fun", [offloaded, in_and_out, in_a_scan, by_a_constraint], ids=lambda f: f.__name__)
def test_host_memory_inside_a_step_is_refused_by_name(fun):
    with pytest.raises(ProgramError, match=f"cannot keep a value in pinned_host memory inside {fun.__name__}") as raised:
        partir.jit(fun, mesh=LINE, schedule=[]).trace(X)

    assert "test_memories.py:" in str(raised.value)
    assert "float32" in str(raised.value)


def on_host(f, x):
    """`f(x)` on the host: by a context manager in jax 0.10, by a function from 0.12 on."""
    if "out_memory_spaces" not in inspect.signature(compute_on).parameters:
        with compute_on("device_host"):
            return f(x)
    return compute_on(f, compute_type="device_host", out_memory_spaces=Space.Device)(x)


def test_computing_on_the_host_is_refused_by_name():
    def fun(x):
        return on_host(lambda x: x * 2, x)

    message = r"cannot compute on device_host inside fun(?s:.*)(mul|compute_on) at test_memories\.py:"
    with pytest.raises(ProgramError, match=message):
        partir.jit(fun, mesh=LINE, schedule=[]).trace(X)


def test_layout_by_device_put_inside_is_named():
    """`jax.jit` leaves it out, too."""
    part = partir.jit(lambda x: jax.device_put(x * 2, NamedSharding(LINE, P("d"))), mesh=LINE, schedule=[]).trace(X).partition()

    (line,) = part.replicated
    assert "device_put at test_memories.py:" in line
    assert "asks for P('d')" in line


def test_moving_to_the_device_is_no_matter():
    part = partir.jit(lambda x: jax.device_put(x, Space.Device) * 2, mesh=LINE, schedule=[]).trace(X).partition()

    assert part.replicated == []
