"""What a function says over meshes of its own is said over the mesh to partition over, or named."""

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.lax import with_sharding_constraint as constrain
from jax.sharding import AxisType, Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

import partir
from partir import MeshError, ProgramError

pytestmark = pytest.mark.jax


def mesh(order: Any = None, **axes: int) -> Mesh:
    """The first devices, in some order."""
    size = int(np.prod([*axes.values()]))
    devices = np.array(jax.devices())[list(range(size) if order is None else order)]
    return Mesh(devices.reshape([*axes.values()]), tuple(axes), axis_types=(AxisType.Auto,) * len(axes))


X = np.arange(128, dtype="float32").reshape(16, 8) / 10
GRID, FLAT = mesh(x=4, y=2), mesh(z=8)
BACKWARDS = mesh(range(7, -1, -1), r=8)
ACROSS = mesh([0, 2, 4, 6, 1, 3, 5, 7], b=2, a=4)
"""The devices of GRID column by column: a is x, and b is y."""


def assert_laid(fun: Any, over: Any, spec: P, *args: Any, whole: tuple[str, ...] = ()) -> None:
    """The result lies so, `whole` has lines with these texts and no others, and the numbers are those of one device."""
    args = args or (X,)
    part = partir.jit(fun, mesh=over, schedule=[]).trace(*args).partition()
    result = part(*args)
    assert part.out_specs == spec
    assert len(part.replicated) == len(whole)
    assert all(text in line for text, line in zip(whole, part.replicated, strict=True)), part.replicated
    np.testing.assert_allclose(np.asarray(result), np.asarray(jax.jit(fun)(*args)), rtol=1e-5, atol=1e-6)


# ---- constraints


@pytest.mark.parametrize(
    ("over", "theirs", "asked", "spec"),
    [
        (GRID, FLAT, P("z"), P(("x", "y"))),  # CASES d14
        (partir.Mesh(x=4, y=2), FLAT, P(None, "z"), P(None, ("x", "y"))),
        (FLAT, GRID, P(("x", "y")), P("z")),
        (GRID, mesh(a=2, b=4), P(("a", "b")), P(("x", "y"))),
        (mesh(p=2, q=2, r=2), GRID, P("x", "y"), P(("p", "q"), "r")),
        (mesh(p=2, q=2, r=2), mesh(u=2, v=4), P("v", "u"), P(("q", "r"), "p")),
        (GRID, ACROSS, P("a", "b"), P("x", "y")),
        (GRID, mesh(y=2, x=4).abstract_mesh, P("x", "y"), P("x", "y")),
    ],
    ids=str,
)
def test_constraint_over_another_mesh_of_the_same_devices(over, theirs, asked, spec):
    assert_laid(lambda x: constrain(jnp.sin(x), NamedSharding(theirs, asked)) * 2, over, spec)


def test_constraint_over_another_mesh_puts_each_piece_where_plain_jit_puts_it():
    for target in (NamedSharding(FLAT, P(None, "z")), NamedSharding(ACROSS, P("a", "b"))):
        constrained = functools.partial(lambda target, x: constrain(jnp.sin(x), target), target)

        ours, plain = partir.jit(constrained, mesh=GRID, schedule=[])(X), jax.jit(constrained)(X)

        assert ours.sharding.devices_indices_map(X.shape) == plain.sharding.devices_indices_map(X.shape)


@pytest.mark.parametrize("dtype", ["bfloat16", "int8"])
def test_constraint_over_another_mesh_of_rank_3(dtype):
    x = np.arange(16 * 8 * 4).reshape(8, 4, 16).astype(dtype)

    assert_laid(lambda x: constrain(x + x, NamedSharding(FLAT, P(None, None, "z"))), GRID, P(None, None, ("x", "y")), x)


def test_constraint_over_another_mesh_through_a_gradient():
    def loss(x):
        return (constrain(jnp.sin(x), NamedSharding(FLAT, P("z"))) ** 2).sum()

    assert_laid(jax.grad(loss), GRID, P(("x", "y")))


@pytest.mark.parametrize(
    ("theirs", "asked", "says"),
    [
        (BACKWARDS, P("r"), ('dim 0 was asked for over "r" of Mesh(r=8) on devices 7, 6, 5, 4, 3, 2, 1, 0',)),
        (mesh(range(7, -1, -1), x=4, y=2), P("x"), ('dim 0 was asked for over "x" of Mesh(x=4, y=2) on devices 7, 6',)),
        (mesh(a=2, b=4), P("a", "b"), ('dim 0 was asked for over "a" of Mesh(a=2, b=4)', 'dim 1 was asked for over "b"')),
        (mesh(x=2, y=4), P(None, "y"), ('dim 1 was asked for over "y" of Mesh(x=2, y=4)',)),
    ],
    ids=str,
)
def test_constraint_that_no_axes_can_say_is_named_with_both_meshes(theirs, asked, says):
    assert_laid(lambda x: constrain(jnp.sin(x), NamedSharding(theirs, asked)) * 2, GRID, P(), whole=says)


def test_part_of_an_axis_is_named():
    assert_laid(lambda x: constrain(x * 2, NamedSharding(GRID, P("y"))), FLAT, P(), whole=('"y" of Mesh(x=4, y=2)',))


def test_what_can_be_said_of_a_constraint_is_done():
    theirs = mesh(p=2, q=2, r=2)

    assert_laid(lambda x: constrain(x * 2, NamedSharding(theirs, P("r", ("p", "q")))), GRID, P("y", "x"))
    assert_laid(
        lambda x: constrain(x * 2, NamedSharding(theirs, P("r", "p"))), GRID, P("y"), whole=('dim 1 was asked for over "p"',)
    )


def test_constraint_follows_the_mesh_of_the_partition():
    traced = partir.jit(lambda x: constrain(x * 2, NamedSharding(FLAT, P("z"))), mesh=GRID, schedule=[]).trace(X)

    assert traced.partition().out_specs == P(("x", "y"))
    assert traced.partition(mesh=FLAT).out_specs == P("z")
    assert traced.partition(mesh=mesh(p=2, q=2, r=2)).out_specs == P(("p", "q", "r"))


def test_constraint_for_other_devices_is_meant_by_name():
    few = mesh(x=4)

    assert_laid(lambda x: constrain(x * 2, NamedSharding(few, P("x"))), GRID, P("x"))
    assert_laid(
        lambda x: constrain(x * 2, NamedSharding(mesh(x=2), P("x"))), GRID, P(), whole=('"x" of Mesh(x=2) on devices 0, 1',)
    )


def test_shardings_of_an_inner_jit_are_over_its_own_mesh():
    inner = jax.jit(lambda x: jnp.sin(x), out_shardings=NamedSharding(FLAT, P("z")))

    assert_laid(lambda x: inner(x) * 2, GRID, P(("x", "y")))


# ---- shard_map


def mapped(over: Any, body: Any, specs: tuple[P, P]) -> Any:
    return lambda x: jax.shard_map(body, mesh=over, in_specs=specs[0], out_specs=specs[1], check_vma=False)(x)


def test_shard_map_over_another_mesh_of_the_same_devices():
    body = mapped(FLAT, lambda x: x * jax.lax.axis_index("z") + jax.lax.psum(x, "z"), (P("z"), P("z")))

    assert_laid(body, GRID, P(("x", "y")))
    assert_laid(jax.grad(lambda x: (body(x) ** 2).sum()), GRID, P(("x", "y")))


def test_shard_map_over_the_same_axes_in_another_order():
    """Its groups and its devices' own numbers are those of another order."""

    def body(x):
        swapped = jax.lax.ppermute(x, "y", [(0, 1), (1, 0)])
        return jax.lax.psum(x, "x") * (1 + jax.lax.axis_index("y")) + swapped - jax.lax.axis_index("x")

    assert_laid(mapped(mesh(y=2, x=4), body, (P("x", "y"), P("x", "y"))), GRID, P("x", "y"))
    assert_laid(mapped(mesh(y=2, x=4), body, (P("x", "y"), P("x", "y"))), mesh(x=2, y=4), P("y", "x"))


def test_shard_map_in_a_loop_over_the_same_axes_in_another_order():
    body = mapped(mesh(y=2, x=4), lambda x: x / 2 + jax.lax.pmax(x, "x") * jax.lax.axis_index("y"), (P("x", "y"), P("x", "y")))

    assert_laid(lambda x: jax.lax.fori_loop(0, 3, lambda _, x: body(x), x), GRID, P())


@pytest.mark.parametrize(
    ("theirs", "specs", "says"),
    [
        (mesh(a=2, b=4), (P("a", "b"), P("a", "b")), "a of Mesh(a=2, b=4)"),
        (mesh(x=2, y=4), (P("x"), P("x")), "x of Mesh(x=2, y=4)"),
        (mesh(x=4), (P("x"), P("x")), "x of Mesh(x=4) on devices 0, 1, 2, 3"),
    ],
    ids=str,
)
def test_shard_map_that_no_axes_can_say_is_refused_with_both_meshes(theirs, specs, says):
    part = partir.jit(mapped(theirs, lambda x: x * 2, specs), mesh=GRID, schedule=[]).trace(X).partition()

    with pytest.raises(ProgramError, match=r"shard_map") as raised:
        part.report()

    assert says in str(raised.value)
    assert "the mesh to partition over is Mesh(x=4, y=2)" in str(raised.value)


def test_shard_map_over_some_axes_runs_and_names_what_it_asks_of_the_others():
    def plain(x):
        return jax.shard_map(lambda x: jnp.sin(x) * 2, in_specs=P("x"), out_specs=P("x"), axis_names={"x"})(x)

    def asking(x):
        body = lambda x: constrain(jnp.sin(x), P(None, "y")) * 2  # noqa: E731
        return jax.shard_map(body, in_specs=P("x"), out_specs=P("x"), axis_names={"x"})(x)

    with jax.set_mesh(GRID):
        assert_laid(plain, GRID, P("x"))
        assert_laid(asking, GRID, P("x"), whole=('asks for dim 1 over "y": it stays replicated there',))


# ---- in_shardings and out_shardings


@pytest.mark.parametrize(
    ("over", "theirs", "asked", "spec"),
    [
        (GRID, FLAT, P("z"), P(("x", "y"))),
        (FLAT, GRID, P(None, ("x", "y")), P(None, "z")),
        (GRID, ACROSS, P("b"), P("y")),
        (GRID, mesh(x=4, y=2).abstract_mesh, P("y", "x"), P("y", "x")),
        (partir.Mesh(x=64, y=2), GRID, P("y"), P("y")),  # planned for more devices than there are: by name
    ],
    ids=str,
)
def test_fixed_sharding_over_another_mesh(over, theirs, asked, spec):
    target = NamedSharding(theirs, asked)

    asked_in = partir.jit(jnp.sin, mesh=over, schedule=[], in_shardings=target).trace(X).partition()
    asked_out = partir.jit(jnp.sin, mesh=over, schedule=[], out_shardings=target).trace(X).partition()
    by_pattern = partir.jit(jnp.sin, mesh=over).trace(X).partition([partir.Manual({"*": target})])

    assert asked_in.in_specs == by_pattern.in_specs == (spec,)
    assert asked_out.out_specs == spec


@pytest.mark.parametrize("where", ["in_shardings", "out_shardings"])
@pytest.mark.parametrize(
    ("theirs", "asked", "says"),
    [
        (mesh(a=2, b=4), P("a"), "Mesh(a=2, b=4)"),
        (mesh(x=2, y=4), P("y"), "Mesh(x=2, y=4)"),
        (BACKWARDS, P("r"), "Mesh(r=8) on devices 7, 6, 5, 4, 3, 2, 1, 0"),
        (mesh(x=2), P("x"), "Mesh(x=2) on devices 0, 1"),
    ],
    ids=str,
)
def test_fixed_sharding_that_no_axes_can_say_is_refused_with_both_meshes(where, theirs, asked, says):
    step = partir.jit(jnp.sin, mesh=GRID, schedule=[], **{where: NamedSharding(theirs, asked)})

    with pytest.raises(MeshError, match="is for another mesh") as raised:
        step.trace(X).partition()

    assert says in str(raised.value)
    assert "no axes of Mesh(x=4, y=2), the mesh to partition over" in str(raised.value)
