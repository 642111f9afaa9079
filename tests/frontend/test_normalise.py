"""What an import changes about a program: ops stand where users would put them, and mean the same."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import partir
from partir.frontend.bridge import bridge
from partir.sharding.rule import rule_of

pytestmark = pytest.mark.jax


def ops_of(fun, *args):
    """(name, shape of its result) of every op of an imported function, in order."""
    module = bridge(jax.jit(fun).lower(*args).compiler_ir()).module
    named = [op for op in module.walk() if op.name.startswith("stablehlo.") and op.results]
    return [(op.name.removeprefix("stablehlo."), tuple(op.results[0].type.get_shape())) for op in named]


def wide(rng, *shape):
    return jnp.asarray(rng.standard_normal(shape), jnp.float32)


CONTRACTIONS = {
    "matrix": ("bi,io->bo", (6, 4), (4, 8)),
    "heads out": ("bsd,dhk->bhsk", (2, 6, 8), (8, 2, 4)),
    "heads in": ("bshk,hkd->bsd", (2, 6, 2, 4), (2, 4, 8)),
    "batched": ("ebi,eio->ebo", (2, 6, 4), (2, 4, 8)),
}


@pytest.mark.parametrize("precision", ["default", "highest", "BF16_BF16_F32_X3"])
@pytest.mark.parametrize("name", CONTRACTIONS)
def test_a_weight_gradient_is_made_as_the_weight_lies(name, precision, rng):
    equation, x, w = CONTRACTIONS[name]
    x, w = wide(rng, *x), wide(rng, *w)

    def loss(w):
        return jnp.sum(jnp.sin(jnp.einsum(equation, x, w, precision=precision)))

    found = ops_of(jax.grad(loss), w)

    assert ("dot_general", w.shape) in found
    assert found[-1] == ("dot_general", w.shape), "the gradient itself, with no transpose behind it"
    if precision != "BF16_BF16_F32_X3":  # XLA for CPUs does not run it
        got = partir.jit(jax.grad(loss), mesh=partir.Mesh(d=2), schedule=[partir.Tile("w", 0, "d")])(w)
        np.testing.assert_allclose(got, jax.grad(loss)(w), rtol=1e-4, atol=1e-5)


def test_precisions_go_with_their_operands():
    mixed = (jax.lax.Precision.HIGHEST, jax.lax.Precision.DEFAULT)

    def product(x, y):
        return jax.lax.dot_general(x, y, (((1,), (0,)), ((), ())), precision=mixed).T

    shapes = jax.ShapeDtypeStruct((3, 4), "float32"), jax.ShapeDtypeStruct((4, 5), "float32")
    module = bridge(jax.jit(product).lower(*shapes).compiler_ir()).module
    (dot,) = [op for op in module.walk() if op.name == "stablehlo.dot_general"]

    assert [str(v.type) for v in dot.operands] == ["tensor<4x5xf32>", "tensor<3x4xf32>"]
    assert str(dot.properties["precision_config"]) == "[#stablehlo<precision DEFAULT>, #stablehlo<precision HIGHEST>]"


def test_what_is_exchanged_alike_has_one_rule():
    def loss(weights, x):
        for w in weights:
            x = jnp.sin(x @ w)
        return jnp.sum(x)

    weights, x = [jax.ShapeDtypeStruct((8, 8), "float32")] * 4, jax.ShapeDtypeStruct((16, 8), "float32")
    module = bridge(jax.jit(jax.grad(loss)).lower(weights, x).compiler_ir()).module
    dots = [op for op in module.walk() if op.name == "stablehlo.dot_general"]
    gradients = [op for op in dots if str(op.results[0].type) == "tensor<8x8xf32>"]

    # Groups of repeated layers tell rules apart by identity.
    assert len(gradients) == 4
    assert len({id(rule_of(op)) for op in gradients}) == 1


@pytest.mark.parametrize("case", ["read twice", "mixed dims"])
def test_other_transposes_stay(case):
    def twice(x, y):
        product = x @ y
        return product, product.T

    def mixed(x, y):
        return jnp.einsum("iaj,jb->iab", x, y).transpose(0, 2, 1)

    x, y = ((3, 4), (4, 5)) if case == "read twice" else ((3, 2, 4), (4, 5))
    shapes = [jax.ShapeDtypeStruct(shape, "float32") for shape in (x, y)]

    names = [name for name, _ in ops_of(twice if case == "read twice" else mixed, *shapes)]

    assert names.count("dot_general") == 1
    assert names.count("transpose") == 1
