"""However it is called, it computes the same: axis types, contexts, kinds of arguments, options of jit, marks in the model."""

import collections
import contextlib
import dataclasses
import functools
import itertools
import warnings
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.experimental import io_callback
from jax.sharding import AbstractMesh, AxisType, NamedSharding
from jax.sharding import PartitionSpec as P
from programs import PROGRAMS

import partir
from partir import DataParallel, Manual, Megatron, ZeRO

pytestmark = pytest.mark.jax

X = np.arange(64, dtype="float32").reshape(8, 8) / 10
ON_ROWS = [DataParallel("data", inputs="x")]


def mesh_with(axis_type: AxisType) -> jax.sharding.Mesh:
    return jax.make_mesh((4, 2), ("data", "model"), axis_types=(axis_type,) * 2)


MESH = mesh_with(AxisType.Explicit)


def assert_equal(actual: Any, expected: Any) -> None:
    """The same pytrees, types and (float32) numbers."""
    assert jax.tree.structure(actual) == jax.tree.structure(expected)
    for here, there in zip(jax.tree.leaves(actual), jax.tree.leaves(expected), strict=True):
        assert here.dtype == there.dtype
        if jax.dtypes.issubdtype(here.dtype, jax.dtypes.prng_key):
            here, there = jax.random.key_data(here), jax.random.key_data(there)
        np.testing.assert_allclose(np.asarray(here, "complex"), np.asarray(there, "complex"), rtol=1e-5, atol=1e-6)


def assert_called_alike(fun: Any, *args: Any, schedule: Any = ON_ROWS, keywords: Any = None, **options: Any) -> None:
    """`partir.jit(fun)` gives what `jax.jit(fun)` gives, the first time and again."""
    keywords = keywords or {}
    static = {name: options[name] for name in ("static_argnums", "static_argnames") if name in options}
    expected = jax.jit(fun, **static)(*args, **keywords)
    step = partir.jit(fun, mesh=MESH, schedule=schedule, **options)
    for _ in range(2):
        assert_equal(step(*args, **keywords), expected)


# ---- the matrix


def _place_numpy(args: Any, mesh: Any) -> Any:
    return jax.tree.map(np.array, args)


def _place_uncommitted(args: Any, mesh: Any) -> Any:
    return jax.tree.map(jnp.array, args)


def _place_on_one_device(args: Any, mesh: Any) -> Any:
    return jax.device_put(_place_numpy(args, mesh), jax.devices()[3])


def _place_in_another_layout(args: Any, mesh: Any) -> Any:
    return jax.tree.map(lambda x: jax.device_put(np.array(x), NamedSharding(mesh, P("model"))), args)


def _place_on_another_mesh(args: Any, mesh: Any) -> Any:
    other = jax.make_mesh((2, 4), ("a", "b"))
    return jax.tree.map(lambda x: jax.device_put(np.array(x), NamedSharding(other, P("b"))), args)


PLACEMENTS = {
    "numpy": _place_numpy,
    "uncommitted": _place_uncommitted,
    "one device": _place_on_one_device,
    "another layout": _place_in_another_layout,
    "another mesh": _place_on_another_mesh,
    "previous outputs": _place_numpy,
}


@functools.cache
def one_device_step() -> tuple[Any, Any, Any]:
    """Arguments of a step that donates its parameters, and the results of one step and of two."""
    example = PROGRAMS["clipped_sgd_step"]
    params, *batch = example.concrete()
    once = jax.jit(example.fun)(params, *batch)
    return (params, *batch), once, jax.jit(example.fun)(once[0], *batch)


@pytest.mark.parametrize(
    ("axis_type", "context", "placement", "inside"),
    list(itertools.product(["Auto", "Explicit"], ["no context", "set_mesh"], PLACEMENTS, ["top level", "inside jit"])),
)
def test_every_kind_of_argument_in_every_context(axis_type, context, placement, inside):
    args, once, twice = one_device_step()
    mesh = mesh_with(AxisType[axis_type])
    schedule = [DataParallel("data"), Megatron("model"), ZeRO("data", stage=3)]
    step = partir.jit(
        PROGRAMS["clipped_sgd_step"].fun,
        mesh=mesh if context == "no context" else None,
        schedule=schedule,
        donate_argnums=0,
    )
    called = jax.jit(step) if inside == "inside jit" else step

    with jax.set_mesh(mesh) if context == "set_mesh" else contextlib.nullcontext():
        params, *batch = PLACEMENTS[placement](args, mesh)
        if (placement, inside) == ("one device", "inside jit"):
            # JAX itself refuses before it calls anything: an outer jit whose arguments are committed to other devices than
            # the computation inside it runs on.
            with pytest.raises(ValueError, match="incompatible devices"):
                called(params, *batch)
            return
        if (placement, inside, axis_type) == ("another mesh", "inside jit", "Auto") and jax.__version__ < "0.11":
            # A type that names another mesh cannot be taken to Auto axes by any function of this JAX.
            with pytest.raises(partir.MeshError, match=r"params/w1 is on another mesh(?s:.*)a=2, b=4"):
                called(params, *batch)
            return
        actual = called(params, *batch)
        if placement == "previous outputs":
            assert_equal(called(actual[0], *batch), twice)
        else:
            assert_equal(actual, once)


def test_outer_jit_computes_around_it():
    step = partir.jit(lambda w, x: jnp.tanh(x @ w), mesh=MESH, schedule=ON_ROWS)

    @jax.jit
    def outer(w, x):
        return step(2 * w, step(w, x + 1)) * 3

    assert_equal(outer(X, X), 3 * jnp.tanh(jnp.tanh((X + 1) @ X) @ (2 * X)))


def test_inside_a_scan():
    step = partir.jit(lambda x: jnp.sin(x), mesh=MESH, schedule=ON_ROWS)

    carry, _ = jax.jit(lambda x: jax.lax.scan(lambda c, _: (step(c), None), x, length=3))(X)

    assert_equal(carry, jnp.sin(jnp.sin(jnp.sin(X))))


# ---- the options of jit


@pytest.mark.parametrize(
    ("fun", "args", "keywords", "options"),
    [
        (lambda x, n: x * n, (X, 3), {}, {"static_argnums": 1}),
        (lambda n, x: x * n, (3, X), {}, {"static_argnums": 0}),
        (lambda x, n: x * n, (X, 3), {}, {"static_argnums": -1}),
        (lambda x, n: x * n, (X, 3), {}, {"static_argnames": "n"}),
        (lambda x, n: x * n, (X,), {"n": 3}, {"static_argnames": ("n",)}),
        (lambda x, f: f(x), (X, jnp.sin), {}, {"static_argnums": (1,)}),
        (lambda x, *, y: x + y, (X,), {"y": X}, {}),
        (lambda x, y=2.0: x + y, (X,), {}, {}),
        (lambda x, **rest: x + rest["a"]["b"], (X,), {"a": {"b": X}}, {}),
        (lambda x, *rest: x + rest[0] * rest[1], (X, X, X), {}, {}),
        (functools.partial(lambda a, x: x * a, 2.0), (X,), {}, {}),
    ],
)
def test_static_and_keyword_arguments(fun, args, keywords, options):
    assert_called_alike(fun, *args, keywords=keywords, **options)


def test_another_static_argument_is_another_program():
    step = partir.jit(lambda x, n: x * n, mesh=MESH, schedule=ON_ROWS, static_argnums=1)

    assert_equal(step(X, 2), X * 2)
    assert_equal(step(X, 5), X * 5)


@pytest.mark.parametrize("make", [np.array, jnp.array], ids=["numpy", "jax"])
def test_donated_arguments(make):
    step = partir.jit(lambda x, y: (x + 1, y * 2), mesh=MESH, schedule=ON_ROWS, donate_argnums=0, donate_argnames="y")
    x, y = make(X), make(X)

    actual = step(x, y=y)

    assert_equal(actual, (X + 1, X * 2))
    again = step(actual[0], y=actual[1])
    assert actual[0].is_deleted()
    assert actual[1].is_deleted()
    assert_equal(again, (X + 2, X * 4))


def test_methods_and_callables():
    class Doubler:
        def __call__(self, x):
            return x * 2

        def thrice(self, x):
            return x * 3

    assert_called_alike(Doubler(), X)
    assert_called_alike(Doubler().thrice, X)


def test_decorator():
    @partir.jit(mesh=MESH, schedule=ON_ROWS)
    def double(x):
        """Twice x."""
        return x * 2

    assert_equal(double(X), X * 2)
    assert (double.__name__, double.__doc__) == ("double", "Twice x.")


# ---- what arguments and results may be

Pair = collections.namedtuple("Pair", "first second")


@jax.tree_util.register_dataclass
@dataclasses.dataclass
class Record:
    first: Any
    second: Any


@pytest.mark.parametrize(
    ("fun", "argument"),
    [
        (lambda x, p: Pair(p.second, p.first + x), Pair(X, 2 * X)),
        (lambda x, r: Record(r.second, r.first + x), Record(X, 2 * X)),
        (lambda x, d: {"a": None, "b": x + d["q"], "c": (), "d": []}, {"q": X, "r": None}),
        (lambda x, t: (t, (x, [t[0]])), (X, (None, X))),
    ],
    ids=["namedtuple", "dataclass", "None", "nested"],
)
def test_pytrees(fun, argument):
    assert_called_alike(fun, X, argument)


@pytest.mark.parametrize("scalar", [2, 2.5, True, 2j, np.float32(2.5), np.int8(3)], ids=repr)
def test_python_scalars_keep_their_weak_types(scalar):
    assert_called_alike(lambda x, s: (x * s, s + 1), X, scalar)


def test_typed_random_keys():
    def noisy(x, key):
        return x + jax.random.normal(key, x.shape)

    def noisy_rows(x, keys):
        return x + jax.vmap(jax.random.uniform)(keys)[:, None]

    for impl in ("threefry2x32", "rbg"):
        assert_called_alike(noisy, X, jax.random.key(3, impl=impl))
    assert_called_alike(noisy, X, jax.random.PRNGKey(3))
    assert_called_alike(noisy_rows, X, jax.random.split(jax.random.key(3), 8))


def test_random_key_that_is_handed_on():
    def noisy_step(x, key):
        now, later = jax.random.split(key)
        return x + jax.random.normal(now, x.shape), later

    assert_called_alike(noisy_step, X, jax.random.key(3))


def test_closures_small_and_large():
    small, large = np.arange(8, dtype="float32"), np.arange(4096, dtype="float32").reshape(8, 512)
    on_device = jnp.asarray(large)
    integers, halves, flags = np.arange(2048), jnp.asarray(large, jnp.bfloat16), large.astype("int32") % 2 == 0

    assert_called_alike(lambda x: x + small, X)
    assert_called_alike(lambda x: x @ large, X)
    assert_called_alike(lambda x: x @ on_device + on_device[0, :1], X)
    assert_called_alike(lambda x: x @ jax.device_put(large, jax.devices()[5]), X)
    assert_called_alike(lambda x: (x + integers[:8], (x @ halves.astype(x.dtype)), x @ flags), X)


def test_large_closure_is_an_argument_of_the_program():
    large = np.arange(4096, dtype="float32").reshape(8, 512)

    tr = partir.jit(lambda x: x @ large + large[0], mesh=MESH).trace(X)

    assert [(leaf.name, leaf.shape, leaf.role) for leaf in tr.arguments[1:]] == [("constant/0", (8, 512), "constant")]
    assert len(jax.tree.leaves(tr.partition(ON_ROWS).in_specs, is_leaf=lambda s: isinstance(s, P))) == 1


def test_nested_jit():
    inner = jax.jit(lambda y: y @ y)

    assert_called_alike(lambda x: jax.jit(jnp.sin)(x) + inner(x) + inner(2 * x), X)


# ---- effects that are not ordered


def test_pure_callback():
    def called(x):
        doubled = jax.pure_callback(
            lambda v: 2 * np.asarray(v), jax.ShapeDtypeStruct(x.shape, x.dtype), x, vmap_method="sequential"
        )
        return doubled + x

    assert_called_alike(called, X)
    assert_called_alike(lambda x: called(x) + called(2 * x), X)


def test_io_callback():
    assert_called_alike(lambda x: io_callback(np.sin, jax.ShapeDtypeStruct(x.shape, x.dtype), x) * 2, X)


def test_debug_print_and_debug_callback(capfd):
    heard: list[float] = []

    def talking(x):
        jax.debug.print("total {}", jnp.sum(x))
        jax.debug.callback(lambda v: heard.append(float(v)), x[0, 1])
        return x * 2

    step = partir.jit(talking, mesh=MESH, schedule=ON_ROWS)
    for _ in range(2):
        assert_equal(step(X), X * 2)
    jax.effects_barrier()

    assert capfd.readouterr().out.count("total 201.6") == 2
    assert heard == pytest.approx([0.1, 0.1])


# ---- fixed shardings


def test_in_and_out_shardings_are_kept():
    step = partir.jit(
        lambda w, x: {"y": x @ w, "w": w + 1},
        mesh=MESH,
        schedule=[],
        in_shardings=(None, NamedSharding(MESH, P("data"))),
        out_shardings={"y": P("data", "model"), "w": None},
    )

    part = step.trace(X, X).partition()

    assert part.in_specs[1] == P("data")
    assert part.out_specs["y"] == P("data", "model")
    actual = step(X, X)
    assert actual["y"].sharding.spec == P("data", "model")
    assert_equal(actual, {"y": X @ X, "w": X + 1})


def test_one_sharding_for_all():
    step = partir.jit(lambda w, x: (x + w, x - w), mesh=MESH, schedule=[], in_shardings=P("data"), out_shardings=P("model"))

    part = step.trace(X, X).partition()

    assert part.in_specs == (P("data"), P("data"))
    assert part.out_specs == (P("model"), P("model"))
    assert_equal(step(X, X), (X + X, X - X))


def test_fixed_shardings_come_before_the_schedule():
    step = partir.jit(
        lambda w, x: x @ w, mesh=MESH, schedule=[DataParallel("data", inputs="x")], in_shardings=(P(None, "data"), None)
    )

    part = step.trace(X, X).partition()

    assert part.in_specs == (P(None, "data"), P("data"))
    assert_equal(step(X, X), X @ X)


# ---- shapes, stages, meshes


def test_new_shapes_replay_the_first_strategy():
    step = partir.jit(lambda params, x: jnp.tanh(x @ params).sum(0), mesh=MESH, schedule=[DataParallel("data")])

    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for rows, columns in ((8, 8), (16, 8), (24, 4), (8, 8)):
            params, x = np.ones((8, columns), "float32"), np.ones((rows, 8), "float32")
            assert_equal(step(params, x), jnp.tanh(x @ params).sum(0))

    with pytest.warns(partir.ReplanWarning, match=r"7 mod 4 = 3.*4 or 8 would"):
        assert_equal(step(X, X[:7]), jnp.tanh(X[:7] @ X).sum(0))


def test_eval_shape_and_clear_cache():
    step = partir.jit(lambda x, n: {"y": x[:, :n]}, mesh=MESH, schedule=ON_ROWS, static_argnums=1)

    assert step.eval_shape(X, 3)["y"].shape == (8, 3)
    assert_equal(step(X, 3), {"y": X[:, :3]})
    step.clear_cache()
    assert_equal(step(X, 4), {"y": X[:, :4]})


def test_stages_are_those_of_jax():
    step = partir.jit(lambda w, x: x @ w, mesh=MESH, schedule=ON_ROWS)
    part = step.trace(X, X).partition()

    lowered = step.lower(X, X)
    compiled = lowered.compile()

    assert isinstance(lowered, jax.stages.Lowered)
    assert isinstance(compiled, jax.stages.Compiled)
    placed = jax.device_put((X, X), part.in_shardings)
    assert_equal(compiled(*placed), X @ X)
    assert compiled.input_shardings[0] == part.in_shardings
    assert compiled.output_shardings.is_equivalent_to(part.out_shardings, 2)


def test_compiler_options_are_passed_on():
    step = partir.jit(lambda x: x * 2, mesh=MESH, schedule=ON_ROWS, compiler_options={"xla_no_such_option": True})

    with pytest.raises(Exception, match="xla_no_such_option"):
        step(X)


MESHES = {
    "partir.Mesh": partir.Mesh(data=4, model=2),
    "AbstractMesh": AbstractMesh((4, 2), ("data", "model")),
    "Auto": mesh_with(AxisType.Auto),
    "Explicit": MESH,
}


@pytest.mark.parametrize("kind", MESHES)
def test_meshes_of_every_kind_plan_alike_and_run(kind):
    step = partir.jit(lambda w, x: (x @ w).sum(), mesh=MESHES[kind], schedule=ON_ROWS)

    part = step.trace(X, X).partition()

    assert (part.in_specs, part.collectives) == ((P(), P("data")), {"all_reduce": 1})
    assert_equal(step(X, X), jnp.sum(X @ X))


@pytest.mark.parametrize("mesh", [partir.Mesh(data=512, model=8), AbstractMesh((512, 8), ("data", "model"))], ids=repr)
def test_planning_needs_no_devices(mesh):
    shapes = jax.ShapeDtypeStruct((64, 64), "bfloat16"), jax.ShapeDtypeStruct((4096, 64), "bfloat16")
    schedule = [DataParallel("data", inputs="x"), Manual({"w": 1}, axis="model")]

    part = partir.jit(lambda w, x: x @ w, mesh=mesh).trace(*shapes).partition(schedule)

    assert part.in_specs == (P(None, "model"), P("data"))
    assert part.out_specs == P("data", "model")
    assert part.collectives == {}
    assert '"data"=512' in str(part.spmd)


# ---- what the model's author wrote


def test_tagged_values_can_be_sharded():
    def tagged(x):
        with partir.scope("block"):
            return jnp.tanh(partir.tag(x @ x.T, "scores")) @ x

    part = partir.jit(tagged, mesh=MESH).trace(X).partition([Manual({"#scores": 1}, axis="model")])

    assert part.collectives == {"all_reduce": 1}
    assert_equal(part(X), jnp.tanh(X @ X.T) @ X)
    assert_equal(jax.jit(tagged)(X), jnp.tanh(X @ X.T) @ X)


def test_marks_survive_grad_and_vmap():
    def marked(x):
        return (partir.constrain(partir.tag(jnp.sin(x), "s"), P("data")) ** 2).sum()

    assert_called_alike(jax.grad(marked), X, schedule=[])
    assert_called_alike(jax.vmap(marked), X, schedule=[])


def test_constraint_is_honoured():
    part = partir.jit(lambda x: partir.constrain(jnp.sin(x), P(None, "model")) * 2, mesh=MESH).trace(X).partition([])

    assert part.out_specs == P(None, "model")
    assert part.replicated == []
    assert_equal(part(X), 2 * jnp.sin(X))


@pytest.mark.parametrize("how", ["NamedSharding", "spec under set_mesh"])
def test_jax_constraint_is_honoured(how):
    mesh = mesh_with(AxisType.Auto)
    target = NamedSharding(mesh, P(None, "model")) if how == "NamedSharding" else P(None, "model")

    def constrained(x):
        return jax.lax.with_sharding_constraint(jnp.sin(x), target) * 2

    with jax.set_mesh(mesh) if how != "NamedSharding" else contextlib.nullcontext():
        part = partir.jit(constrained, mesh=mesh).trace(X).partition([])

    assert part.out_specs == P(None, "model")
    assert_equal(part(X), 2 * jnp.sin(X))


def test_jax_constraint_over_another_mesh_is_reported():
    other = jax.make_mesh((2, 4), ("a", "b"), axis_types=(AxisType.Auto,) * 2)

    def constrained(x):
        return jax.lax.with_sharding_constraint(jnp.sin(x), NamedSharding(other, P(None, "b"))) * 2

    part = partir.jit(constrained, mesh=mesh_with(AxisType.Auto)).trace(X).partition([])

    (line,) = part.replicated
    assert '"b"' in line
    assert_equal(part(X), 2 * jnp.sin(X))


def test_saved_strategy_is_replayed_elsewhere(tmp_path):
    """On the same function imported again, with other sizes and on another mesh shape (CASES e2)."""
    example = PROGRAMS["mlp_grad"]
    schedule = [DataParallel("data"), Megatron("model"), ZeRO("data", stage=3)]
    first = partir.jit(example.fun, mesh=MESH).trace(*example.args).partition(schedule)
    first.strategy.save(tmp_path / "s.json")

    strategy = partir.load_strategy(tmp_path / "s.json")

    assert strategy == first.strategy
    other = jax.make_mesh((2, 4), ("data", "model"))
    args = example.concrete()
    again = partir.jit(example.fun, mesh=other).trace(*args).partition([strategy])
    assert (again.in_specs, again.collectives) == (first.in_specs, first.collectives)
    assert_equal(again(*args), jax.jit(example.fun)(*args))
