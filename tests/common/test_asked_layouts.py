"""Layouts that users ask for and partitioners move, drop or refuse: as reported, in a variation, and through a gradient."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from equal import assert_same
from hlo import collectives_in
from jax import lax
from jax.sharding import AxisType
from jax.sharding import PartitionSpec as P

import partir
from partir import Manual, TilingError

pytestmark = pytest.mark.jax

MESHES = {
    "8": (("d", 8),),
    "4x2": (("x", 4), ("y", 2)),
    "b4t2": (("b", 4), ("t", 2)),
    "2x2x2": (("x", 2), ("y", 2), ("z", 2)),
}
OPEN = P.UNCONSTRAINED


def mesh_of(name):
    names, sizes = zip(*MESHES[name], strict=True)
    return jax.make_mesh(sizes, names, axis_types=(AxisType.Auto,) * len(names))


def partitioned(fun, args, mesh, schedule=(), **asked):
    """Partitioned as asked, run, and compared with one device; the compiled program has the planned collectives."""
    mesh = mesh_of(mesh)
    part = partir.jit(fun, mesh=mesh, schedule=list(schedule), **asked).trace(*args).partition()
    with jax.set_mesh(mesh):
        expected = jax.jit(fun)(*args)
    results = part(*args)
    assert_same(jax.tree.map(plain, results), jax.tree.map(plain, expected))
    assert collectives_in(part.lower().compile().as_text()) == part.collectives
    return part


def plain(x):
    return np.asarray(jax.random.key_data(x) if jnp.issubdtype(x.dtype, jax.dtypes.prng_key) else x)


def array(*shape, dtype="float64"):
    return (np.random.default_rng(shape).integers(-4, 5, shape) / 4).astype(dtype)


def constrained(x, *dims):
    return lax.with_sharding_constraint(x, P(*dims))


# ---- arguments


def step(w, x):
    return jax.grad(lambda w: jnp.tanh(x @ w).sum())(w)


@pytest.mark.parametrize("named", [lambda w, x: step(w, x), lambda w, batch: step(w, batch), lambda a, b: step(a, b)])
@pytest.mark.parametrize(("mesh", "spec"), [("8", P("d")), ("4x2", P(("y", "x"))), ("4x2", P("y"))])
def test_specs_hold_whatever_the_arguments_are_called(named, mesh, spec, x64):
    """pytorch/xla#6778: both cut along their first dims, which the product wants cut in different ways."""
    part = partitioned(named, (array(32, 32), array(64, 32)), mesh, in_shardings=(spec, spec))

    assert part.in_specs == (spec, spec)
    assert part.collectives


def test_what_moves_an_argument_is_counted_priced_and_explained(x64):
    args = (array(32, 32), array(64, 32))
    part = partitioned(step, args, "8", in_shardings=(P("d"), P("d")), target="tpu_v3")

    assert part.collectives == {"all_gather": 1, "reduce_scatter": 1}
    assert part.estimate.communication_seconds > 0
    assert "all_gather" in str(part.explain("w"))


@pytest.mark.parametrize("names", [("w", "x"), ("x", "w")])
@pytest.mark.parametrize("dtype", ["float64", "float32"])
def test_both_entries_of_manual_hold_in_either_order(names, dtype, x64):
    entries = {"w": P("d"), "x": P("d")}
    part = partitioned(
        lambda w, x: x @ w,
        (array(32, 32, dtype=dtype), array(64, 32, dtype=dtype)),
        "8",
        [Manual({n: entries[n] for n in names})],
    )

    assert part.in_specs == (P("d"), P("d"))
    # The first entry has the axis at the product: its sum is put together, or the other argument moved.
    assert part.collectives == ({"all_to_all": 1, "all_reduce": 1} if names[0] == "w" else {"all_gather": 1})


def test_both_entries_of_manual_hold_in_a_gradient(x64):
    part = partitioned(step, (array(32, 32), array(64, 32)), "4x2", [Manual({"w": P("x", "y"), "x": P("x", "y")})])

    assert part.in_specs == (P("x", "y"), P("x", "y"))


@pytest.mark.parametrize("other", [P(None, "d"), P("d", None), {"d": 1}])
def test_two_entries_for_one_argument_agree_or_are_both_named(other):
    specs, axis = ({"w": P("d"), "*": other}, None) if isinstance(other, P) else ({"w": 0, "*": 1}, "d")
    traced = partir.jit(lambda w: w * 2, mesh=partir.Mesh(d=8)).trace(array(32, 32))
    if other == P("d", None):
        assert traced.partition([Manual(specs, axis)]).in_specs == (P("d"),)
        return
    with pytest.raises(TilingError, match="two entries of Manual ask different things of w") as raised:
        traced.partition([Manual(specs, axis)])

    assert "'w': " in str(raised.value)
    assert "'*': " in str(raised.value)
    assert 'mesh axis "d" is to cut dim 0 by the one, dim 1 by the other' in str(raised.value)


def test_any_two_of_three_entries_are_compared():
    traced = partir.jit(lambda w: w * 2, mesh=partir.Mesh(x=4, y=2)).trace(array(32, 32))
    with pytest.raises(TilingError, match="dim 1 is to lie over y by the one, over x by the other") as raised:
        traced.partition([Manual({"w": P(), "*": P(None, "y"), "**": P(None, "x")})])

    assert "'*': " in str(raised.value)
    assert "'**': " in str(raised.value)


def test_a_value_that_is_kept_whole_is_not_also_laid(x64):
    traced = partir.jit(step, mesh=partir.Mesh(d=8)).trace(array(32, 32), array(64, 32))
    with pytest.raises(TilingError, match="it is kept replicated over it"):
        traced.partition([partir.Replicate("w", "d"), Manual({"w": P("d")})])


# ---- dims that ops split into other blocks


def halves(x):
    return x[: len(x) // 2] * x[len(x) // 2 :]


SPLITS = {
    "first rows": lambda x: x[:16] * 2,
    "some rows": lambda x: x[3:19] * 2,
    "rolled": lambda x: jnp.roll(x, 16, 0) + x,
    "halves": halves,
    "split": lambda x: jnp.tanh(x).reshape(2, 32, *x.shape[1:]).sum(1),
    "mapped": lambda x: lax.map(jnp.tanh, x, batch_size=24),
    "glu": lambda x: jax.nn.glu(x, 0),
    "quarters": lambda x: jnp.stack(jnp.split(x, 4)).sum(0),
}


@pytest.mark.parametrize("through", [lambda f: f, lambda f: jax.grad(lambda x: (f(x) ** 2).sum())], ids=["", "gradient"])
@pytest.mark.parametrize(("mesh", "spec"), [("8", P("d")), ("4x2", P(("x", "y")))])
@pytest.mark.parametrize("name", SPLITS)
def test_a_dim_is_cut_though_an_op_has_fewer_blocks_of_it(name, mesh, spec, through, x64):
    """sglang-jax#1096. The op moves its operand, and is named."""
    part = partitioned(through(SPLITS[name]), (array(64, 2),), mesh, in_shardings=(spec,))

    assert part.in_specs == (spec,)
    assert part.collectives
    assert any("cannot work on slices of that dim" in line for line in part.replicated)


@pytest.mark.parametrize("dtype", ["float64", "float32"])
def test_one_matrix_of_queries_keys_and_values_is_cut_over_two(dtype, x64):
    def attention(x, w):
        q, k, v = jnp.split(x @ w, 3, axis=-1)
        return jnp.tanh(q) * k + v

    args = (array(16, 32, dtype=dtype), array(32, 48, dtype=dtype))
    by_spec = partitioned(attention, args, "b4t2", in_shardings=(None, P(None, "t")))
    by_manual = partitioned(attention, args, "b4t2", [Manual({"w": P(None, "t")})])

    assert by_spec.in_specs == by_manual.in_specs == (P(), P(None, "t"))
    assert by_spec.out_specs == P(None, "t")  # what is computed from the three is cut on


def test_micro_batches_of_fewer_rows_than_devices_stay_cut(x64):
    """The batch is gathered once, as it is put in micro-batches; each is then cut again, and gradients are summed once."""

    def accumulated(w, x):
        def body(total, part):
            return total + jax.grad(lambda w: jnp.tanh(part @ w).sum())(w), None

        return lax.scan(body, jnp.zeros_like(w), x.reshape(4, 16, 32))[0]

    part = partitioned(accumulated, (array(32, 32), array(64, 32)), "8", in_shardings=(P(), P("d")))

    assert part.collectives == {"all_gather": 1, "all_reduce": 1}


def test_a_dim_that_does_not_divide_is_still_refused():
    with pytest.raises(TilingError, match="20 mod 8 = 4"):
        partir.jit(halves, mesh=partir.Mesh(d=8), in_shardings=(P("d"),)).trace(array(20, 2)).partition([])


# ---- rows of a dim that is split elsewhere


ROWS = {
    "rows": lambda h, i: h[i],
    "rows added": lambda h, i: h.at[i].add(1.5),
    "rows set": lambda h, i: h.at[i].set(7.0, mode="drop"),
    "mapped": lambda h, i: lax.map(lambda row: jnp.tanh(row) * 2, h),
    "a row a round": lambda h, i: lax.fori_loop(0, 64, lambda k, s: s + h[k] * k, jnp.zeros(16)),
    "a row written a round": lambda h, i: lax.fori_loop(0, 64, lambda k, s: s.at[k].add(h[k] * k), h),
    "gradient": lambda h, i: jax.grad(lambda h: (h[i] ** 2).sum())(h),
}


@pytest.mark.parametrize(("mesh", "spec"), [("8", P("d")), ("4x2", P(("x", "y"))), ("2x2x2", P("y"))])
@pytest.mark.parametrize("name", ROWS)
def test_rows_are_picked_as_without_a_reshape_elsewhere(name, mesh, spec, x64):
    args = (array(64, 16), np.array([3, 63, 17, -1, 5, 70, 8, 9, 33, 40]))
    alone = partitioned(ROWS[name], args, mesh, in_shardings=(spec, P()))
    beside = partitioned(lambda h, i: (ROWS[name](h, i), h.reshape(8, 8, 16).sum(1)), args, mesh, in_shardings=(spec, P()))

    assert beside.collectives == alone.collectives


@pytest.mark.parametrize("name", ROWS)
def test_rows_of_blocks_that_are_all_cut_are_found(name, x64):
    """Each device has the second half of each of eight blocks, say; no spec says that, but a reshaped value lies so."""
    args = (array(64, 16), np.array([3, 63, 17, -1, 5, 70, 8, 9, 33, 40]))
    mesh = mesh_of("4x2")
    fun = lambda h, i: (ROWS[name](h, i), h.reshape(8, 8, 16).sum(0))  # noqa: E731
    traced = partir.jit(fun, mesh=mesh, schedule=[]).trace(*args)
    blocks = next(
        name
        for name, shape in zip(traced.structure.addresses.names, traced.structure.tables.shapes, strict=True)
        if shape == (8, 8, 16)
    )
    part = traced.partition([partir.Tile(blocks, 1, "x"), partir.Tile(blocks, 0, "y")])

    assert_same(part(*args), jax.jit(fun)(*args))
    assert not any("gather in" in line or "dynamic_slice in" in line for line in part.replicated)


@pytest.mark.parametrize("mesh", ["4x2", "2x2x2"])
def test_a_window_that_is_placed_out_of_range_of_a_part_changes_nothing(mesh, x64):
    """XLA writes a scatter of one window as a slice, its sum and an update, makes one slice of it and of the one that takes a
    device's part, and loses the clamp."""
    first, second, *_ = dict(MESHES[mesh])

    def fun(table, i, update):
        return constrained(table.at[:, i].add(update), first, second)

    args = (np.arange(256, dtype="int32").reshape(16, 16), np.uint8(5), np.arange(16, dtype="int32"))
    for spec in (P(None, first), P(None, (first, second)), P(None, second)):
        partitioned(fun, args, mesh, in_shardings=(spec, None, None))


# ---- results


@pytest.mark.parametrize("dtype", ["float64", "float32"])
def test_what_is_made_is_made_where_it_will_lie(dtype, x64):
    """State is born sharded: no device ever has it whole."""

    def init(key):
        return {"w": jax.random.normal(key, (256, 256), dtype)}

    mesh = mesh_of("8")
    part = partitioned(init, (jax.random.key(0),), "8", out_shardings={"w": P("d")})
    sharding = jax.NamedSharding(mesh, P("d"))
    theirs = jax.jit(init, out_shardings=sharding).lower(jax.random.key(0)).compile().memory_analysis()
    ours = part.lower().compile().memory_analysis()

    assert part.collectives == {}
    assert ours.temp_size_in_bytes <= 1.05 * theirs.temp_size_in_bytes


def test_state_that_follows_a_step_is_born_as_the_step_wants_it(x64):
    def init(key):
        return {"w": jax.random.normal(key, (64, 64))}

    def train(params, x):
        return jax.tree.map(lambda w, g: w - g, params, jax.grad(lambda p: jnp.tanh(x @ p["w"]).sum())(params))

    mesh = mesh_of("8")
    step = partir.jit(train, mesh=mesh, schedule=[Manual({"params/w": P(None, "d")})], donate_argnums=0)
    part = step.trace({"w": array(64, 64)}, array(16, 64)).partition()
    born = part.follow(init, jax.random.key(0))

    assert born.out_specs == {"w": P(None, "d")}
    assert born.collectives == {}
    shapes = {str(op.results[0].type) for op in born.spmd.walk() if op.results and "64x64" in str(op.results[0].type)}
    assert shapes == set()


@pytest.mark.parametrize(("mesh", "spec", "moved"), [("8", P("d"), {}), ("4x2", P("y", "x"), {}), ("8", P(None, "d"), {})])
def test_a_product_of_whole_matrices_is_computed_in_parts(mesh, spec, moved, x64):
    part = partitioned(lambda a, b: a @ b, (array(32, 16), array(16, 64)), mesh, in_shardings=(P(), P()), out_shardings=spec)

    assert part.out_specs == spec
    assert part.collectives == moved


def test_a_gradient_of_whole_matrices_is_computed_in_parts(x64):
    """The rows of the gradient are what the product sums over."""
    part = partitioned(step, (array(32, 32), array(64, 32)), "8", in_shardings=(P(), P()), out_shardings=P("d"))

    assert part.collectives == {"all_reduce": 1}


# ---- open dims


@pytest.mark.parametrize(("mesh", "given"), [("4x2", P("x")), ("2x2x2", P(("x", "z")))])
@pytest.mark.parametrize("through", [lambda f: f, lambda f: jax.grad(lambda x: (f(x) ** 2).sum())], ids=["", "gradient"])
def test_an_open_dim_of_a_constraint_keeps_what_else_claims_it(mesh, given, through, x64):
    """jax#37047."""
    fun = through(lambda x: constrained(jnp.sin(x), OPEN, "y"))
    part = partitioned(fun, (array(16, 32),), mesh, in_shardings=(given,))

    assert part.collectives == {}


def test_a_closed_dim_of_a_constraint_is_whole_there(x64):
    part = partitioned(lambda x: constrained(jnp.sin(x), None, "y"), (array(16, 32),), "4x2", in_shardings=(P("x"),))

    assert part.out_specs == P(None, "y")
    assert part.collectives == {"all_gather": 1}


@pytest.mark.parametrize("spec", [P("d"), P()])
def test_draws_from_keys_that_are_cut_move_nothing(spec, x64):
    """JAX constrains typed keys itself, with open dims."""
    keys = jax.random.split(jax.random.key(0), 16)
    part = partitioned(lambda k: jax.vmap(lambda k: jax.random.normal(k, (4,)))(k), (keys,), "8", in_shardings=(spec,))

    assert part.collectives == {}
    assert part.in_specs == (spec,)


def test_an_open_dim_of_an_argument_is_left_to_what_the_program_wants(x64):
    def fun(x, w):
        return jnp.tanh(x @ w)

    args = (array(16, 32), array(32, 8))
    asked = {"in_shardings": (P(OPEN, "y"), P("y")), "out_shardings": P("x")}
    part = partitioned(fun, args, "4x2", **asked)
    closed = partitioned(fun, args, "4x2", in_shardings=(P(None, "y"), P("y")), out_shardings=P("x"))

    assert part.in_specs == (P("x", "y"), P("y"))
    assert closed.in_specs == (P(None, "y"), P("y"))
    assert part.collectives == closed.collectives == {"all_reduce": 1}


# ---- keys


@pytest.mark.parametrize("outs", [{"key": P(), "w": P("d")}, {"key": None, "w": P(None, "d")}, P()])
def test_a_random_key_among_the_state_takes_a_spec(outs, x64):
    """jax#27223: a key has no dims that a spec speaks of, and inner ones that none does."""

    def fun(state):
        return {"key": jax.random.split(state["key"], 1)[0], "w": state["w"] * 2}

    partitioned(fun, ({"key": jax.random.key(0), "w": array(16, 8)},), "8", out_shardings=outs)


@pytest.mark.parametrize(("mesh", "spec"), [("8", P("d")), ("4x2", P("y")), ("4x2", P(("x", "y")))])
def test_keys_take_specs_over_the_dims_they_show(mesh, spec, x64):
    keys = jax.random.split(jax.random.key(0), 16)
    part = partitioned(
        lambda k: (jax.vmap(jax.random.split)(k), k), (keys,), mesh, in_shardings=(spec,), out_shardings=(spec, spec)
    )

    assert part.out_specs == (spec, spec)
    assert part.collectives == {}


def test_a_constraint_on_keys_holds(x64):
    def fun(keys):
        keys = constrained(keys, "d")
        return jax.vmap(lambda k: jax.random.normal(k, (4,)))(keys)

    assert partitioned(fun, (jax.random.split(jax.random.key(0), 16),), "8").out_specs == P("d")


# ---- constraints hold until an op wants otherwise


def chain(count):
    def fun(x):
        for _ in range(count):
            x = jnp.sin(constrained(x, None, "d")) * 2
        return x

    return fun


@pytest.mark.parametrize("count", [1, 4])
@pytest.mark.parametrize("dtype", ["float64", "float32"])
def test_a_chain_of_constraints_moves_its_value_once(count, dtype, x64):
    """openpi#193."""
    args = (array(16, 32, dtype=dtype),)
    there = partitioned(chain(count), args, "8", in_shardings=(P("d"),))
    back = partitioned(chain(count), args, "8", in_shardings=(P("d"),), out_shardings=P("d"))

    assert there.collectives == {"all_to_all": 1}
    assert back.collectives == {"all_to_all": 2}


def test_a_chain_of_constraints_moves_its_gradient_once(x64):
    fun = jax.grad(lambda x: chain(4)(x).sum())
    assert partitioned(fun, (array(16, 32),), "8", in_shardings=(P("d"),)).collectives == {"all_to_all": 1}


def test_a_constraint_holds_through_a_sum_and_beside_broadcasts(x64):
    def fun(x, bias):
        x = constrained(x, None, "d") + bias
        return (jax.nn.relu(x) * 3).sum(0)

    part = partitioned(fun, (array(16, 32), array(32)), "8", in_shardings=(P("d"), P()))

    assert part.collectives == {"all_to_all": 1}


def test_a_constraint_ends_where_another_value_of_its_size_is_read(x64):
    """The other value lies as the classes have it, and what is computed from both, too."""
    part = partitioned(
        lambda x, y: constrained(x, None, "d") + y, (array(16, 32), array(16, 32)), "8", in_shardings=(P("d"), P("d"))
    )

    assert part.collectives == {"all_to_all": 2}


# ---- what else takes part


def test_search_decides_around_what_is_asked(x64):
    """On the parts that a program repeats, too: layers of which one has a matrix that lies across."""

    def train(params, x):
        def loss(params):
            h = x
            for w in params:
                h = jnp.tanh(h @ w)
            return (h**2).mean()

        return [w - g for w, g in zip(params, jax.grad(loss)(params), strict=True)]

    args = ([array(32, 32) for _ in range(5)], array(64, 32))
    specs = [None, None, P("y", "x"), None, None]
    search = partir.Search(("x", "y"), partir.search.MCTS(episodes=30))
    part = partitioned(train, args, "4x2", [search], in_shardings=(specs, None), out_shardings=specs, target="tpu_v3")

    assert part.in_specs[0][2] == part.out_specs[2] == P("y", "x")
    assert len({str(spec) for spec in part.in_specs[0]}) > 1
    again = partir.jit(train, mesh=mesh_of("4x2"), schedule=[part.strategy]).trace(*args).partition()
    assert again.in_specs == part.in_specs


def test_a_strategy_keeps_what_was_asked_and_says_what_does_not_divide_elsewhere(tmp_path):
    part = partir.jit(step, mesh=partir.Mesh(d=8), schedule=[], in_shardings=(P("d"), P("d"))).trace(
        array(32, 32), array(64, 32)
    )
    part.partition().strategy.save(tmp_path / "s.json")
    strategy = partir.load_strategy(tmp_path / "s.json")

    same = partir.jit(step, mesh=partir.Mesh(d=8), schedule=[strategy]).trace(array(32, 32), array(64, 32)).partition()
    other = partir.jit(step, mesh=partir.Mesh(d=8), schedule=[strategy]).trace(array(32, 32), array(60, 32)).partition()

    assert same.in_specs == (P("d"), P("d"))
    assert other.in_specs == (P("d"), P())
    assert any("60 does not divide by 8" in line for line in other.replicated)


def test_a_session_pins_and_takes_it_back():
    session = partir.jit(step, mesh=partir.Mesh(d=8), target="tpu_v3").trace(array(32, 32), array(64, 32)).session()
    session.tile("w", 0, "d").pin("x", 0, "d")

    assert session.partitioned.in_specs == (P("d"), P("d"))
    assert "partir.Pin(value='x', dim=0, axes='d')" in session.code()
    assert session.undo().partitioned.in_specs == (P("d"), P(None, "d"))


def test_undoing_takes_back_joined_dims():
    traced = partir.jit(halves, mesh=partir.Mesh(d=8)).trace(array(64, 2))
    start = traced.partition([]).assignment
    cut = start.apply(partir.Tile("x", 0, "d"))

    assert cut.structure is not start.structure
    assert cut.undo() == start
    assert cut.undo().structure is start.structure


def test_axes_of_one_device_are_named_as_asked(x64):
    """jax#39309: they cut nothing, but types of Explicit axes name them."""
    mesh = jax.make_mesh((1, 8), ("data", "tensor"), axis_types=(AxisType.Auto,) * 2)

    def heads(x):
        y = constrained(x.reshape(-1, 8, 128), "data", "tensor", None)
        return jnp.concatenate((y, y[..., :0]), -1)

    asked = {"in_shardings": (P("data", "tensor"),), "out_shardings": P("data", "tensor")}
    part = partir.jit(heads, mesh=mesh, schedule=[], **asked).trace(array(1, 1024)).partition()

    assert part.in_specs == (P("data", "tensor"),)
    assert part.out_specs == P("data", "tensor")
    assert part.collectives == {}
    assert_same(part(array(1, 1024)), array(1, 1024).reshape(1, 8, 128))


def test_rows_that_are_shuffled_each_on_its_own_stay_where_they_are(x64):
    """jax#20381."""

    def shuffled(key, x):
        return jax.vmap(jax.random.permutation)(jax.random.split(key, len(x)), x)

    args = (jax.random.key(0), array(24, 16, 3))
    part = partitioned(shuffled, args, "8", in_shardings=(P(), P("d")), out_shardings=P("d"))

    assert part.collectives == {}


def test_a_constraint_under_vmap_is_about_the_mapped_dim_too(x64):
    """jax#15886."""
    part = partitioned(jax.vmap(lambda x: constrained(x * 2, "y"), spmd_axis_name="x"), (array(4, 8),), "4x2")

    assert part.in_specs == (P("x", "y"),)
    assert part.collectives == {}


def test_a_donated_argument_and_a_result_with_a_spec_of_its_own(x64):
    """jax#25346: what is not said of a result is as of the argument it takes the place of."""
    part = partitioned(
        lambda x, y: (constrained(x + 1, "d"), y),
        (array(16), array(16)),
        "8",
        in_shardings=(None, None),
        out_shardings=(None, P("d")),
    )

    assert part.out_specs == (P("d"), P("d"))


def test_what_is_added_to_a_window_out_of_range_of_a_part_stays(x64):
    """The same rewriting from the other side: a sum with the scatter's result becomes what it slices."""

    def fun(x, i):
        def loss(x):
            whole = constrained(x[0:24:1], None)
            return jnp.sin(whole).sum() + jnp.sin(x.at[i].get(mode="fill", fill_value=0))

        return jax.value_and_grad(loss)(x)

    mesh = mesh_of("8")
    traced = partir.jit(fun, mesh=mesh, schedule=[]).trace(array(24), np.int32(12))
    part = traced.partition([partir.Tile("@backward:multiply.1", 0, "d")])
    for index in (0, 5, 12, 23, 30):
        with jax.set_mesh(mesh):
            expected = jax.jit(fun)(array(24), np.int32(index))
        assert_same(jax.tree.map(plain, part(array(24), np.int32(index))), jax.tree.map(plain, expected))
