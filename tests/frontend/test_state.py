"""Roles come from what a program does with its arguments; what stays in doubt is said, and can be stated."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from equal import assert_same, mesh_of

import partir
from partir import DataParallel, ProgramError, ZeRO

pytestmark = pytest.mark.jax

P = jax.P


def shape(*dims, dtype="float32"):
    return jax.ShapeDtypeStruct(dims, dtype)


def traced(fun, *args, **options):
    return partir.jit(fun, mesh=partir.Mesh(data=8), **options).trace(*args)


def roles(fun, *args, **options):
    """What each argument is taken for, by path; random keys are state."""
    return {leaf.name: leaf.role for leaf in traced(fun, *args, **options).arguments}


def loss_of(w, x, y):
    return jnp.mean((jnp.tanh(x @ w) - y) ** 2)


def one_leaf(params, x, y):
    """A training step whose parameters are one matrix in a dict."""
    value, gradients = jax.value_and_grad(lambda params: loss_of(params["w"], x, y))(params)
    return jax.tree.map(lambda p, g: p - 0.1 * g, params, gradients), value


def bare(w, x, y):
    """The same with the matrix alone, handed on as the second result."""
    value, gradient = jax.value_and_grad(loss_of)(w, x, y)
    return value, w - 0.1 * gradient


def by_hand(w, x, y):
    """A step of least squares, its gradient written out."""
    return w - 0.1 * (x.T @ (x @ w - y))


def running_mean(mean, x):
    return 0.9 * mean + 0.1 * jnp.mean(x, axis=0)


def scanned(w, batches):
    """An epoch: the steps are one loop."""
    return jax.lax.scan(lambda w, x: (w - 0.1 * jax.grad(lambda w: jnp.mean(jnp.tanh(x @ w) ** 2))(w), None), w, batches)[0]


def stacked_heads(w, x):
    """Rank 3, contracted over its first two dims."""
    return w - jax.grad(lambda w: jnp.mean(jnp.einsum("bhd,hdo->bo", x, w) ** 2))(w)


STATE = {
    "one leaf": (one_leaf, {"w": shape(16, 16)}, shape(64, 16), shape(64, 16)),
    "bare": (bare, shape(16, 16), shape(64, 16), shape(64, 16)),
    "bare, as large as the batch": (bare, shape(64, 64), shape(64, 64), shape(64, 64)),
    "bfloat16": (bare, *[shape(*dims, dtype="bfloat16") for dims in ((16, 16), (64, 16), (64, 16))]),
    "by hand": (by_hand, shape(16, 8), shape(64, 16), shape(64, 8)),
    "running mean": (running_mean, shape(16), shape(64, 16)),
    "scanned": (scanned, shape(16, 16), shape(10, 64, 16)),
    "rank 3": (stacked_heads, shape(4, 8, 16), shape(64, 4, 8)),
    "gradient": (lambda w, x: jax.grad(lambda w: jnp.mean(jnp.tanh(x @ w) ** 2))(w), shape(16, 16), shape(64, 16)),
}


@pytest.mark.parametrize("case", STATE)
def test_a_leaf_that_is_updated_is_state_though_nobody_gave_it_away(case):
    fun, first, *rest = STATE[case]

    tr = traced(fun, first, *rest)

    assert [leaf.role for leaf in tr.arguments] == ["state", *["input"] * len(rest)]
    assert len(tr.program.signature.state) == 1
    assert tr.program.notes == ()


@pytest.mark.parametrize("mesh", ["8", "4x2"])
@pytest.mark.parametrize(("fun", "is_dict"), [(one_leaf, True), (bare, False)], ids=["dict", "bare"])
def test_such_a_step_is_cut_by_its_batch_and_its_state_by_zero(fun, is_dict, mesh, x64, rng):
    w, x, y = rng.standard_normal((16, 16)), rng.standard_normal((64, 16)), rng.standard_normal((64, 16))
    args = ({"w": w} if is_dict else w, x, y)
    tr = partir.jit(fun, mesh=mesh_of(mesh)).trace(*args)

    part = tr.partition([DataParallel("data")])
    assert jax.tree.leaves(part.in_specs[0], is_leaf=lambda x: isinstance(x, P)) == [P()]
    assert part.in_specs[1:] == (P("data"), P("data"))
    assert part.collectives == {"all_reduce": 2}

    cut = tr.partition([DataParallel("data"), ZeRO("data", stage=3)])
    assert jax.tree.leaves(cut.in_specs[0], is_leaf=lambda x: isinstance(x, P)) == [P("data")]
    assert_same(cut(*args), jax.jit(fun)(*args))


def test_a_gradient_that_a_loop_writes_layer_by_layer_is_no_map_of_its_parameter():
    def step(stack, x):
        run = lambda stack: jnp.mean(jax.lax.scan(lambda h, p: (jnp.tanh(h @ p["w"] + p["b"]), None), x, stack)[0])  # noqa: E731
        return jax.tree.map(lambda p, g: p - 0.1 * g, stack, jax.grad(run)(stack))

    tr = traced(step, {"w": shape(4, 16, 16), "b": shape(4, 16)}, shape(64, 16))

    assert tr.program.signature.state == ((0, 0), (1, 1))
    assert tr.program.notes == ()


def test_the_result_that_an_argument_becomes_is_the_one_computed_from_it():
    """Neither the order of results nor equal shapes decide."""

    def swapped(w1, w2, x):
        g1, g2 = jax.grad(lambda w: jnp.mean((jnp.tanh(x @ w[0]) @ w[1]) ** 2))((w1, w2))
        return w2 - g2, w1 - g1

    def gradients_first(params, x):
        g = jax.grad(lambda p: jnp.mean((jnp.tanh(x @ p["a"]) @ p["b"]) ** 2))(params)
        return g, jax.tree.map(jnp.subtract, params, g)

    w = shape(16, 16)
    assert traced(swapped, w, w, shape(64, 16)).program.signature.state == ((0, 1), (1, 0))
    for donate in ((), (0,)):
        tr = traced(gradients_first, {"a": w, "b": w}, shape(64, 16), donate_argnums=donate)
        assert tr.program.signature.state == ((0, 2), (1, 3))


INPUTS = {
    "sine": (jnp.sin, shape(64, 16)),
    "equal widths": (lambda x, w: x @ w, shape(64, 64), shape(64, 64)),
    "sum": (lambda a, b: a + b, shape(64, 16), shape(64, 16)),
    "several leaves": (lambda batch: jax.tree.map(jnp.sin, batch), {"x": shape(64, 16), "y": shape(64)}),
    "attention": (lambda query, key, value: jax.nn.softmax(query @ key.T) @ value, *[shape(64, 16)] * 3),
}


@pytest.mark.parametrize("case", INPUTS)
def test_a_result_of_equal_shape_makes_no_state(case):
    fun, *args = INPUTS[case]

    tr = traced(fun, *args)

    assert {leaf.role for leaf in tr.arguments} == {"input"}
    assert tr.program.signature.state == tr.program.notes == ()
    assert "assumed" not in str(tr.partition([DataParallel("data")]).report())


# ---- in doubt


def simulated(x):
    """A step of diffusion on a ring."""
    return x + 0.1 * (jnp.roll(x, 1, 0) + jnp.roll(x, -1, 0) - 2 * x)


def residual(x, w1, w2):
    return x + jnp.tanh(x @ w1) @ w2


def adversarial(x, w, y):
    """The gradient is the input's: it sums over no batch."""
    return x + 0.1 * jnp.sign(jax.grad(lambda x: loss_of(w, x, y))(x))


def written(cache, new, position):
    return jax.lax.dynamic_update_slice(cache, new, (0, position, 0))


def lstm(carry, x, w):
    h, c = carry
    z = x @ w + h @ w
    c = jax.nn.sigmoid(z) * c + jnp.tanh(z)
    return (jnp.tanh(c) * z, c), z


DOUBTS = {
    "simulation": (simulated, (shape(64, 16),), "input", "result: state=['x']"),
    "residual": (residual, (shape(64, 16), shape(16, 32), shape(32, 16)), "input", "result: state=['x']"),
    "adversarial": (adversarial, (shape(64, 16), shape(16, 16), shape(64, 16)), "input", "sums over no other"),
    "cache": (written, (shape(8, 32, 16), shape(8, 1, 16), shape(dtype="int32")), "input", "it is written to"),
    "lstm": (lstm, ((shape(64, 16), shape(64, 16)), shape(64, 16), shape(16, 16)), "state", "if it is an input: state=[]"),
    "environment": (
        lambda params, state: jnp.tanh(state @ params["w"]),
        ({"w": shape(16, 4)}, shape(64, 16)),
        "state",
        "state is taken for an input: its dim 0 looks like a batch; if it is state: state=['params', 'state']",
    ),
}


@pytest.mark.parametrize("case", DOUBTS)
def test_what_is_assumed_is_in_the_report_with_how_to_say_otherwise(case):
    fun, args, first, says = DOUBTS[case]

    tr = traced(fun, *args)

    assert tr.arguments[0].role == first
    report = str(tr.partition([DataParallel("data")]).report())
    assert "assumed:" in report
    assert says in report


# ---- stated


def test_state_is_what_the_user_says_by_name_number_or_pattern():
    w, x = shape(16, 16), shape(64, 16)

    assert traced(simulated, shape(64, 16), state=["x"]).program.signature.state == ((0, 0),)
    assert traced(bare, w, x, x, state=[0]).program.signature.state == ((0, 1),)
    assert traced(bare, w, x, x, state="w").program.signature.state == ((0, 1),)
    assert traced(one_leaf, {"w": w}, x, x, state=["params/w"]).program.signature.state == ((0, 0),)
    assert traced(one_leaf, {"w": w}, x, x, state={"params": 0}).program.signature.state == ((0, 0),)
    assert traced(lambda *rest: bare(*rest), w, x, x, state=["rest/0"]).program.signature.state == ((0, 1),)
    assert traced(simulated, shape(64, 16), state=["x"]).program.notes == ()


def test_what_is_not_stated_is_an_input():
    w, x = shape(16, 16), shape(64, 16)

    assert roles(one_leaf, {"w": w}, x, x, state=[]) == {"params/w": "input", "x": "input", "y": "input"}
    assert roles(one_leaf, {"w": w}, x, x, state=[], donate_argnums=0)["params/w"] == "input"
    assert roles(lambda w, x: x @ w, w, x, state={"w": None}) == {"w": "state", "x": "input"}


def test_stated_state_lies_as_it_went_in(x64, rng):
    args = (rng.standard_normal((64, 16)),)
    step = partir.jit(simulated, mesh=mesh_of("8"), schedule=[partir.Tile("x", 1, "data")], state=["x"])

    result = step(*args)

    assert result.sharding.spec == P(None, "data")
    assert_same(result, jax.jit(simulated)(*args))


@pytest.mark.parametrize(
    ("state", "says"),
    [
        (["wight"], 'no argument matches "wight"'),
        ([3], "state=3 names no argument"),
        ({"w": 2}, "state={'w': 2} names no result"),
        ({"w": 0}, "w cannot become result 0 of the step"),
        ({"w": 1, "v": 1}, "two arguments cannot both become result/1"),
    ],
)
def test_state_that_cannot_be_is_refused(state, says):
    def step(w, v, x):
        return loss_of(w, x, x), w - jax.grad(loss_of)(w, x, x) + v

    with pytest.raises(ProgramError) as raised:
        traced(step, shape(16, 16), shape(16, 16), shape(64, 16), state=state)
    assert says in str(raised.value)


def test_an_argument_of_another_shape_than_its_result_names_both():
    with pytest.raises(ProgramError) as raised:
        traced(lambda p, x: ({"w": x @ p["w"]}, x), {"w": shape(16, 16)}, shape(64, 16), state={"p": 0})
    assert str(raised.value).splitlines() == [
        "p cannot become result 0 of the step",
        "  where   p/w",
        "  why     it is float32[16, 16], the result is float32[64, 16]",
        "  try     state={'p': None} for state that is only read",
    ]


# ---- random keys


def looked_up(table, tokens):
    return jnp.sum(table[tokens])


@pytest.mark.parametrize("dims", [(16, 4), (16, 2), (64, 8, 4)])
def test_tokens_are_no_random_keys(dims):
    tokens = shape(*dims, dtype="uint32")

    part = traced(looked_up, shape(128, 16), tokens, state={"table": None}).partition([DataParallel("data")])

    assert part.in_specs[1] == P("data")


def test_tokens_in_a_gradient_step_are_a_batch():
    def step(params, tokens):
        gradients = jax.grad(lambda params: jnp.mean(jnp.tanh(params["table"][tokens] @ params["w"])))(params)
        return jax.tree.map(jnp.subtract, params, gradients)

    tr = traced(step, {"table": shape(128, 16), "w": shape(16, 16)}, shape(16, 4, dtype="uint32"))

    assert tr.partition([DataParallel("data")]).in_specs == ({"table": P(), "w": P()}, P("data"))


def dropout(words, x):
    words, mine = jax.random.split(words)
    return words, x * jax.random.bernoulli(mine, 0.5, x.shape)


def keys_in_a_scan(words, x):
    return jax.lax.scan(lambda c, own: (c * jax.random.normal(own, c.shape), None), x, words)[0]


def key_of_a_branch(words, x):
    return jax.lax.cond(x[0, 0] > 0, lambda: x * jax.random.normal(words[1], x.shape), lambda: x)


@pytest.mark.parametrize(
    ("fun", "dims"),
    [(dropout, (2,)), (keys_in_a_scan, (8, 2)), (key_of_a_branch, (4, 2))],
    ids=["split", "scan", "branch"],
)
def test_words_that_random_numbers_are_drawn_from_are_a_key(fun, dims):
    assert roles(fun, shape(*dims, dtype="uint32"), shape(64, 16)) == {"words": "state", "x": "input"}
    part = traced(fun, shape(*dims, dtype="uint32"), shape(64, 16)).partition([DataParallel("data")])
    assert part.in_specs == (P(), P("data"))


def test_a_key_of_four_words_and_a_typed_one():
    def noise(key, x):
        return x + jax.random.normal(jax.random.wrap_key_data(key, impl="rbg"), x.shape)

    assert roles(noise, shape(4, dtype="uint32"), shape(64, 16))["key"] == "state"
    typed = jax.eval_shape(lambda: jax.random.key(0))
    assert roles(lambda k, x: x + jax.random.normal(k, x.shape), typed, shape(64, 16))["k"] == "state"


def test_the_key_of_an_attention_is_an_input_whatever_its_name():
    part = traced(INPUTS["attention"][0], *[shape(64, 16)] * 3).partition([DataParallel("data")])

    assert part.in_specs == (P("data"), P("data"), P("data"))


def test_a_step_is_the_same_however_its_arguments_are_wrapped():
    """`*args` hides names: use decides."""

    tr = traced(lambda *args: bare(*args), *STATE["bare"][1:])

    assert [leaf.role for leaf in tr.arguments] == ["state", "input", "input"]


def test_numbers_in_place_of_shapes(rng):
    assert roles(bare, *[np.zeros(leaf.shape, leaf.dtype) for leaf in STATE["bare"][1:]])["w"] == "state"
