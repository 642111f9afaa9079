"""Operations of ops against XLA's own count on CPU."""

import jax
import jax.numpy as jnp
import pytest
from jax import lax
from programs import PROGRAMS

import partir
from partir.cost.flops import work_of

pytestmark = pytest.mark.jax

F32 = "float32"


def conv(strides=(1, 1), padding="SAME", groups=1, dilation=(1, 1), spread=(1, 1)):
    def fun(x, w):
        return lax.conv_general_dilated(
            x,
            w,
            strides,
            padding,
            feature_group_count=groups,
            lhs_dilation=dilation,
            rhs_dilation=spread,
            dimension_numbers=("NHWC", "HWIO", "NHWC"),
        )

    return fun


IMAGE, KERNEL = (4, 10, 12, 8), (3, 3, 8, 16)
CASES = {
    "matmul": (lambda x, y: x @ y, (16, 8), (8, 32)),
    "batched": (lambda x, y: jnp.einsum("bij,bjk->bik", x, y), (4, 16, 8), (4, 8, 32)),
    "outer": (lambda x, y: jnp.einsum("i,j->ij", x, y), (16,), (8,)),
    "two contracted": (lambda x, y: jnp.einsum("aij,ijk->ak", x, y), (4, 6, 8), (6, 8, 5)),
    "convolution": (conv(), IMAGE, KERNEL),
    "strided": (conv(strides=(2, 3), padding="VALID"), IMAGE, KERNEL),
    "padded": (conv(padding=((2, 1), (0, 3))), IMAGE, KERNEL),
    "grouped": (conv(groups=4), IMAGE, (3, 3, 2, 16)),
    "dilated image": (conv(padding=((0, 0), (0, 0)), dilation=(2, 1)), IMAGE, KERNEL),
    "dilated kernel": (conv(padding="SAME", spread=(1, 2)), IMAGE, KERNEL),
    "sum": (lambda x: x.sum(0), (16, 8)),
    "pointwise": (lambda x, y: x * y + x, (16, 8), (16, 8)),
}


def ours(fun, *args):
    tables = partir.jit(fun, mesh=partir.Mesh(a=1), schedule=[]).trace(*args).structure.tables
    return [work_of(row) for row in tables.rows], tables


@pytest.mark.parametrize("case", CASES)
def test_operations_are_those_xla_counts(case):
    fun, *shapes = CASES[case]
    args = [jax.ShapeDtypeStruct(shape, F32) for shape in shapes]

    works, _ = ours(fun, *args)

    assert sum(work.flops for work in works) == jax.jit(fun).lower(*args).cost_analysis()["flops"]


def test_exponentials_are_counted_apart():
    args = [jax.ShapeDtypeStruct((16, 8), F32)]

    works, _ = ours(lambda x: jnp.exp(x) + jnp.tanh(x), *args)

    assert sum(work.transcendental for work in works) == 2 * 16 * 8
    assert sum(work.flops for work in works) == 16 * 8


@pytest.mark.parametrize("name", ["mlp_grad", "attention_grad"])
def test_a_training_program_has_the_operations_xla_counts(name):
    program = PROGRAMS[name]

    works, _ = ours(program.fun, *program.args)

    counted = jax.jit(program.fun).lower(*program.args).cost_analysis()["flops"]
    assert sum(work.flops for work in works) == pytest.approx(counted, rel=0.05)
    assert sum(work.matrix for work in works) <= counted


@pytest.mark.parametrize(("precision", "passes"), [("default", 1), ("high", 3), ("highest", 6)])
def test_precision_says_how_often_a_narrow_product_is_taken(precision, passes):
    arg = jax.ShapeDtypeStruct((8, 8), F32)

    works, _ = ours(lambda x: jnp.dot(x, x, precision=precision), arg)

    assert [work.passes for work in works if work.matrix] == [passes]


def test_moving_elements_computes_nothing():
    arg = jax.ShapeDtypeStruct((8, 4), F32)

    works, _ = ours(lambda x: jnp.concatenate([x.T.reshape(-1), x.reshape(-1)[::-1]]), arg)

    assert sum(work.flops for work in works) == 0


def test_sort_and_linear_algebra_count_their_order():
    arg = jax.ShapeDtypeStruct((8, 16, 16), F32)

    sorted_, _ = ours(lambda x: jnp.sort(x, axis=-1), arg)
    solved, _ = ours(jnp.linalg.cholesky, arg)

    assert sum(work.vector for work in sorted_) == 8 * 16 * 16 * 4
    assert sum(work.matrix for work in solved) >= 8 * 16**3 / 3
