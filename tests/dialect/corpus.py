"""Small JAX programs that together use nearly every op, attribute and type JAX lowers to."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import jax
import jax.export
import jax.ffi
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.extend.mlir import ir
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

PROGRAMS: dict[str, Program] = {}


@dataclass(frozen=True)
class Program:
    """A function with abstract arguments, and the platforms it is lowered for."""

    fun: Callable[..., Any]
    args: tuple[Any, ...]
    platforms: tuple[str, ...]
    x64: bool
    explicit: bool  # lowered under a mesh with explicit axes

    def lower(self, platform: str) -> ir.Module:
        explicit = jax.sharding.AxisType.Explicit
        mesh = jax.make_mesh((4, 2), ("data", "model"), axis_types=(explicit, explicit))
        with jax.enable_x64(self.x64), jax.set_mesh(mesh) if self.explicit else contextlib.nullcontext():
            traced = jax.jit(self.fun).trace(*self.args)
            return traced.lower(lowering_platforms=(platform,)).compiler_ir()


def shape(*dims: int, dtype: Any = jnp.float32) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(dims, dtype)


def program(
    *args: Any, platforms: tuple[str, ...] = ("cpu",), x64: bool = False, explicit: bool = False
) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Register a function under its own name."""

    def register(fun: Callable[..., Any]) -> Callable[..., Any]:
        PROGRAMS[fun.__name__] = Program(fun, args, platforms, x64, explicit)
        return fun

    return register


F = shape(8, 16)
I = shape(8, 16, dtype=jnp.int32)  # noqa: E741
B = shape(8, 16, dtype=jnp.bool_)
C = shape(8, 16, dtype=jnp.complex64)
ALL = ("cpu", "tpu", "cuda")


@program(F)
def unary(x):
    names = (
        "abs cbrt ceil cos exp expm1 floor is_finite log log1p logistic neg round rsqrt sign sin sqrt tan tanh sinh "
        "cosh asin acos atan asinh acosh atanh erf erfc erf_inv lgamma digamma bessel_i0e bessel_i1e square exp2"
    )
    return [getattr(lax, name)(x) for name in names.split()], jnp.round(x), jnp.isinf(x)


@program(I, x64=True)
def integers(x):
    y = x.astype(jnp.uint32)
    return (
        x % 3, x // 5, x & 7, x | 8, x ^ 2, ~x, x << 1, x >> 1, y >> 1, lax.population_count(x), lax.clz(x),
        jnp.sign(x), jnp.minimum(x, 2), jnp.maximum(x, 1), x.astype(jnp.int64), x.astype(jnp.uint8),
        lax.mulhi(x, x) if hasattr(lax, "mulhi") else x,
    )  # fmt: skip


@program(F, F)
def binary(x, y):
    return (
        x + y, x - y, x * y, x / y, x**y, x % y, jnp.arctan2(x, y), jnp.minimum(x, y), jnp.maximum(x, y),
        lax.nextafter(x, y), lax.zeta(x, y), lax.polygamma(x, y), lax.igamma(x, y), lax.random_gamma_grad(x, y),
        lax.clamp(0.0, x, 1.0), lax.reduce_precision(x, 5, 10),
    )  # fmt: skip


@program(shape(8), shape(8), shape(8))
def betainc(a, b, x):
    return lax.betainc(a, b, x)


@program(F, F)
def comparisons(x, y):
    order = x < y, x <= y, x > y, x >= y, x == y, x != y
    return (
        *order, jnp.where(x < y, x, y), jnp.sort(x),
        (x < 0) & (y < 0),
    )  # fmt: skip


@program(C, C)
def complex_numbers(x, y):
    return (
        x + y, x * y, jnp.conj(x), jnp.abs(x), jnp.angle(x), jnp.real(x), jnp.imag(x), lax.complex(x.real, y.imag),
        x == y, x @ y.T, x * (1 + 2j), jnp.exp(x), jnp.sqrt(x),
        jnp.array([1 + 2j, np.inf - 1j, np.nan], np.complex64), jnp.tan(x), jnp.arcsin(x),
    )  # fmt: skip


@program(shape(4, dtype=jnp.complex128), x64=True)
def complex128(x):
    return x * 1j, jnp.array([1 + 2j, 3.5]), jnp.full((3,), 2 - 1e-30j)


@program(F, shape(16, 4), shape(3, 8, 16), shape(3, 16, 4))
def contractions(x, y, a, b):
    return (
        x @ y, a @ b, jnp.einsum("bij,bjk->bki", a, b), jnp.dot(x, y, precision="highest"),
        jnp.tensordot(a, b, ([0, 2], [0, 1])),
        lax.dot_general(x, y, (((1,), (0,)), ((), ())), preferred_element_type=jnp.bfloat16),
        lax.dot(x, y, precision=("high", "default")),
    )  # fmt: skip


@program(F, shape(16, 4), platforms=("cuda",))
def dot_algorithms(x, y):
    presets = (
        lax.DotAlgorithmPreset.TF32_TF32_F32,
        lax.DotAlgorithmPreset.BF16_BF16_F32_X3,
        lax.DotAlgorithmPreset.F16_F16_F32,
    )
    return [lax.dot(x, y, precision=preset) for preset in presets]


@program(shape(8, 16), shape(3, 16, 4), shape(3, dtype=jnp.int32), platforms=ALL)
def ragged_dot(x, w, sizes):
    return lax.ragged_dot(x, w, sizes)


@program(shape(2, 17, 17, 8), shape(3, 3, 4, 16))
def convolution(x, k):
    def f(x, k):
        layouts = ("NHWC", "HWIO", "NHWC")
        return lax.conv_general_dilated(
            x, k, (2, 2), "SAME", (1, 1), (2, 1), layouts, feature_group_count=2, precision="highest"
        )

    return f(x, k), jax.grad(lambda x, k: f(x, k).sum(), (0, 1))(x, k)


@program(shape(2, 3, 20), shape(5, 3, 4))
def convolution_1d(x, k):
    return (
        lax.conv(x, k, (1,), "VALID"),
        lax.conv_transpose( x, k, (2,), "SAME", dimension_numbers=("NCH", "OIH", "NCH") ),
    )  # fmt: skip


@program(shape(2, 16, 16, 3))
def pooling(x):
    pool = partial(lax.reduce_window, window_dimensions=(1, 2, 2, 1), window_strides=(1, 2, 2, 1), padding="VALID")
    highest = lambda x: pool(x, -jnp.inf, lax.max)  # noqa: E731
    return (
        highest(x), pool(x, 0.0, lax.add), jax.grad(lambda x: highest(x).sum())(x), jnp.cumsum(x, 1),
        lax.cummax(x, 2), lax.cumlogsumexp(x, 1),
    )  # fmt: skip


@program(F)
def reductions(x):
    return (
        x.sum(), x.max(0), x.min(1), x.prod(), (x > 0).all(), (x > 0).any(1), x.argmax(), x.argmin(0), x.mean(),
        x.std(), jax.nn.logsumexp(x, 1), lax.reduce(x, np.float32(0), lambda a, b: a * b + 1, (0,)),
        lax.reduce((x, x), (np.float32(0), np.float32(1)), lambda a, b: (a[0] + b[0], a[1] * b[1]), (1,)),
        lax.reduce_and_p.bind(x > 0, axes=(0,)), lax.reduce_xor_p.bind(x > 0, axes=(1,)),
        x.astype(jnp.bfloat16).sum(),
    )  # fmt: skip


@program(F)
def shapes(x):
    return (
        x.reshape(4, 32), x.T, x[None], x[:, ::2], x[::-1], jnp.pad(x, ((1, 2), (0, 3))),
        lax.pad(x, 0.0, ((-1, 0, 2), (0, 1, 0))), jnp.concatenate([x, x], 1), jnp.stack([x, x]),
        jnp.tile(x, (2, 2)), jnp.repeat(x, 2, 0), jnp.roll(x, 3, 1), jnp.split(x, 4, 1),
        jnp.broadcast_to(x, (3, 8, 16)), jnp.triu(x), jnp.diag(x[0]), jnp.squeeze(x[:1]), jnp.swapaxes(x, 0, 1),
        lax.rev(x, (0, 1)), jnp.flip(x, 1),
    )  # fmt: skip


@program()
def constants():
    rng = np.random.default_rng(0)
    return (
        jnp.arange(16), jnp.eye(4), jnp.zeros((3, 4)), jnp.array([1.5, -0.0, jnp.inf, -jnp.inf, jnp.nan]),
        np.float32(1e-45), np.float32(3e38), np.linspace(0, 1, 7).astype(np.float32),
        np.array([True, False, True]), rng.random((13, 17)).astype(np.float32), rng.random(201) > 0.5,
        rng.integers(-5, 5, 150).astype(np.int8), np.arange(6, dtype=np.uint16).reshape(2, 3),
        np.zeros((0, 3), np.float32), jnp.array(3, jnp.bfloat16), np.linspace(0, 3, 9).astype(jnp.bfloat16),
        np.linspace(0, 1e-3, 9).astype(np.float16), np.full((4, 4), -1e30, np.float32), np.zeros((32, 32), bool),
        np.ones((4, 5), np.int32), np.finfo(np.float32).min, np.array([2**31, 1], np.uint32), np.full((7,), True),
        np.array([0.1, 1e20, 1e-20, 16777217, 1e10], np.float32),
    )  # fmt: skip


@program(x64=True)
def constants_f64():
    return (
        np.array([0.1, 1e300, 5e-324, np.inf, 1e16, 2.0**53, 123456789.0]), np.array(2**62), np.array(-(2**63)),
        np.float64(1e22),
    )  # fmt: skip


@program(F, shape(4, dtype=jnp.int32), shape(4, 2, dtype=jnp.int32))
def indexing(x, i, ij):
    return (
        x[i], x[:, i], x[ij[:, 0], ij[:, 1]], jnp.take(x, i, 0, mode="clip"),
        jnp.take_along_axis(x, jnp.argsort(x), 1), x.at[i].set(0.0), x.at[i].add(1.0), x.at[:, i].mul(2.0),
        x.at[3].set(1.0), x.at[i].max(0.0), x.at[2, 3].min(0.0), lax.dynamic_slice(x, (i[0], i[1]), (2, 3)),
        lax.dynamic_update_slice(x, x[:2, :2], (i[0], 0)), x.at[i].get(mode="fill"),
        jax.ops.segment_sum(x, jnp.arange(8) % 3, 3), jax.vmap(lambda r, k: r[k])(x[:4], i),
        jax.vmap(lambda r, k: r.at[k].set(1.0))(x[:4], i), x.at[i].apply(jnp.sin),
        x.at[i, :].set(2.0, indices_are_sorted=True, unique_indices=True),
    )  # fmt: skip


@program(F, platforms=("tpu", "cuda"))
def sorting(x):
    return (
        jnp.sort(x, 0), jnp.argsort(x), lax.top_k(x, 3), lax.sort((x, x), num_keys=2), lax.approx_max_k(x, 2),
        jnp.unique(x, size=4), jnp.median(x), jnp.searchsorted(x[0], x[1]),
    )  # fmt: skip


@program(shape(2, dtype=jnp.uint32), platforms=("cpu", "tpu"))
def randoms(key):
    k = jax.random.split(key, 4)
    return (
        jax.random.normal(k[0], (8,)), jax.random.bernoulli(k[1], 0.1, (8,)),
        jax.random.categorical(k[2], jnp.zeros((3, 4))), jax.random.split(k[3]),
        jax.random.randint(k[1], (3,), 0, 9), jax.random.bits(k[0], (4,), jnp.uint8),
    )  # fmt: skip


@program(shape(2, dtype=jnp.uint32))
def gamma(key):
    return jax.random.gamma(key, 2.0)


@program()
def typed_keys():
    key = jax.random.key(0)
    return (
        jax.random.fold_in(key, 3), jax.random.uniform(jax.random.split(key)[0], (4,)), jax.random.key_data(key),
        jax.random.key(1, impl="rbg"),
    )  # fmt: skip


@program(platforms=("cpu", "tpu"))
def rng_bit_generator():
    key = jax.random.key(0, impl="rbg")
    other = jax.random.key(0, impl="unsafe_rbg")
    return (
        jax.random.uniform(key, (8,)), jax.random.bits(other, (4,), jnp.uint32),
        lax.rng_bit_generator(jnp.zeros(4, jnp.uint32), (3,), algorithm=lax.RandomAlgorithm.RNG_THREE_FRY),
        lax.rng_uniform(0.0, 1.0, (3,)),
    )  # fmt: skip


@program(shape(4, 4), platforms=ALL)
def linear_algebra(a):
    s = a @ a.T + jnp.eye(4)
    return (
        jnp.linalg.cholesky(s), jnp.linalg.qr(a), jnp.linalg.svd(a), jnp.linalg.eigh(s), jnp.linalg.inv(a),
        jnp.linalg.det(a), jnp.linalg.solve(a, a[0]),
        lax.linalg.triangular_solve(s, a, left_side=True, lower=True, transpose_a=True), jax.scipy.linalg.expm(a),
        jnp.linalg.slogdet(a), jnp.linalg.pinv(a),
    )  # fmt: skip


@program(shape(4, 4))
def eigenvalues(a):
    return (
        jnp.linalg.eig(a), jax.scipy.linalg.schur(a), lax.linalg.hessenberg(a),
        lax.linalg.tridiagonal_solve(a[0], a[1], a[2], a),
    )  # fmt: skip


@program(shape(8, 16), C)
def fourier(x, c):
    return (
        jnp.fft.fft(c), jnp.fft.ifft(c), jnp.fft.rfft(x), jnp.fft.irfft(c), jnp.fft.fft2(c),
        jax.scipy.signal.convolve(x[0], x[1]),
    )  # fmt: skip


@program(shape(16), shape(6, 16, 16))
def scan(x, w):
    def body(c, w):
        c = jnp.tanh(w @ c)
        return c, c.sum()

    def loss(x, w):
        c, s = lax.scan(body, x, w)
        return c.sum() + s.sum()

    return (
        jax.grad(loss, (0, 1))(x, w), lax.scan(jax.checkpoint(body), x, w, reverse=True),
        lax.associative_scan(jnp.add, w),
    )  # fmt: skip


@program(shape(8))
def control(x):
    y = lax.while_loop(lambda s: s[0] < 5, lambda s: (s[0] + 1, s[1] * 2), (0, x))
    z = lax.cond(x[0] > 0, jnp.sin, lambda v: v.at[0].set(1.0), x)
    return (
        y, z, lax.switch(x[0].astype(int), [jnp.sin, jnp.cos, lambda v: v], x),
        lax.fori_loop(0, 4, lambda i, v: v + i, x), lax.map(jnp.sin, x),
    )  # fmt: skip


@program(F)
def nets(x):
    return (
        jax.nn.gelu(x), jax.nn.gelu(x, approximate=False), jax.nn.relu(x), jax.nn.silu(x), jax.nn.softmax(x),
        jax.nn.one_hot(x.astype(int)[0], 5), jax.nn.log_softmax(x), jax.nn.standardize(x), jax.nn.selu(x),
        jax.nn.softplus(x), jax.nn.relu6(x), jax.nn.glu(x),
    )  # fmt: skip


@program(shape(2, 8, 4, 16), shape(2, 8, 2, 16), platforms=("cpu", "cuda"))
def attention(q, k):
    return (
        jax.nn.dot_product_attention(q, k, k, is_causal=True),
        jax.grad( lambda q: jax.nn.dot_product_attention(q, k, k).sum() )(q),
    )  # fmt: skip


FP8 = [
    "float8_e4m3fn",
    "float8_e5m2",
    "float8_e4m3b11fnuz",
    "float8_e4m3fnuz",
    "float8_e5m2fnuz",
    "float8_e3m4",
    "float8_e4m3",
    "float8_e8m0fnu",
    "float4_e2m1fn",
]


@program(F)
def small_floats(x):
    out = [x.astype(t).astype(jnp.float32) for t in FP8]
    values = [np.array([0.5, 1.0, 2.0]).astype(jnp.dtype(t)) for t in FP8]
    many = [np.linspace(0.5, 4, 120).astype(jnp.dtype(t)) for t in FP8]
    scaled = lax.dot(x.astype(jnp.float8_e4m3fn), x.T.astype(jnp.float8_e4m3fn), preferred_element_type=jnp.float32)
    return out, values, many, scaled, jnp.full((3,), 0.3, jnp.float8_e5m2)


@program(shape(8, dtype=jnp.int4), shape(8, dtype=jnp.uint4))
def small_integers(x, y):
    return (
        x + 1, y * 2, x.astype(jnp.int8), jnp.array([1, -3], jnp.int4), jnp.array([1, 3], jnp.uint4),
        x.astype(jnp.int2), jnp.zeros(3, jnp.uint2), np.arange(120).astype(jnp.int4),
        lax.bitcast_convert_type(x.astype(jnp.int8), jnp.int4),
    )  # fmt: skip


@program(F)
def bitcasts(x):
    return lax.bitcast_convert_type(x, jnp.int32), lax.bitcast_convert_type(x, jnp.uint8), x.view(jnp.uint16)


@program(F)
def callbacks(x):
    jax.debug.print("x {}", x[0, 0])
    jax.debug.callback(lambda v: None, x)
    y = jax.pure_callback(lambda v: np.asarray(v), jax.ShapeDtypeStruct(x.shape, x.dtype), x)
    z = jax.experimental.io_callback(lambda v: np.asarray(v), jax.ShapeDtypeStruct(x.shape, x.dtype), x, ordered=True)
    return y + z


@program(shape(8, 16, dtype=jnp.float32))
def calls(x):
    inner = jax.jit(lambda v: jnp.sin(v) @ v.T)
    with jax.named_scope("layer_0"):
        y = inner(x) + inner(x * 2)
    return lax.optimization_barrier((y, x)), jax.checkpoint(inner)(x), jax.nn.relu(x), lax.stop_gradient(x)


@program(F)
def composites(x):
    return lax.composite(lambda v, scale: jnp.tanh(v) * scale, "my.scaled", version=2)(x, scale=np.float32(2.0))


@program(F)
def exported_custom_call(x):
    out = jax.ShapeDtypeStruct(x.shape, x.dtype)
    typed = jax.ffi.ffi_call("my_kernel", out, input_output_aliases={0: 0}, has_side_effect=True)
    plain = jax.ffi.ffi_call("my_old", (out, out), custom_call_api_version=2, legacy_backend_config="abc")
    return typed(x, eps=np.float32(1e-5), name="n", flag=True, n=np.int64(3)), plain(x)


def mesh(**axes: int) -> jax.sharding.Mesh:
    size = int(np.prod(list(axes.values())))
    return jax.sharding.Mesh(np.array(jax.devices()[:size]).reshape(tuple(axes.values())), tuple(axes))


def sharded(x, mesh, *spec):
    return lax.with_sharding_constraint(x, NamedSharding(mesh, P(*spec)))


@program(F)
def sharding_constraints(x):
    m = mesh(data=4, model=2)
    other = mesh(model=8)
    one = mesh(data=1, model=8)
    u = P.UNCONSTRAINED
    y = sharded(x, m, "data", None) + sharded(x, m, None, ("model", "data")) + sharded(x, m, u, "model") + sharded(x, m)
    return y + sharded(x, other, "model"), sharded(x, one, "model")


@program(F)
def collectives(x):
    m = mesh(data=4, model=2)

    def body(x):
        i = lax.axis_index("data")
        s = lax.psum(x, "data")
        g = lax.all_gather(x, "model", axis=1, tiled=True)
        r = lax.psum_scatter(x.T, ("data",), scatter_dimension=0, tiled=True)
        a = lax.all_to_all(x, "model", 1, 0, tiled=True)
        p = lax.ppermute(x, "data", [(0, 1), (1, 0)])
        n = lax.pmax(x, ("data", "model")), lax.pmin(x, "data"), lax.pmean(x, "model")
        return s.sum() + g.sum() + r.sum() + a.sum() + p.sum() + sum(v.sum() for v in n) + i

    return jax.shard_map(body, mesh=m, in_specs=P("data", "model"), out_specs=P(), check_vma=False)(x)


@program(F)
def manual(x):
    m = mesh(data=4, model=2)
    f = jax.shard_map(
        lambda v: v * lax.psum(v.sum(), "data"), mesh=m, in_specs=P("data"), out_specs=P("data"), axis_names={"data"}
    )
    return (
        f(x), jax.grad(lambda v: f(v).sum())(x),
        jax.shard_map(jnp.sin, mesh=m, in_specs=P(None, ("data", "model")), out_specs=P(None, ("data", "model")))(x),
    )  # fmt: skip


@program(
    jax.ShapeDtypeStruct((16, 4), jnp.float32, sharding=NamedSharding(mesh(a=2, b=2, c=2), P(("a", "c"), "b"))),
)
def sharded_arguments(x):
    return x * 2, sharded(x.reshape(4, 4, 4), mesh(a=2, b=2, c=2), "c", "a", None)


@program(F)
def accuracies(x):
    return lax.exp(x, accuracy=lax.Tolerance(1e-5, 0.0, 2)), lax.log(x, accuracy=lax.AccuracyMode.HIGHEST)


@program(F)
def gradients(x):
    def net(x):
        h = jax.nn.relu(x @ jnp.ones((16, 32)))
        return (h.var(-1) + jax.nn.logsumexp(h, -1)).mean()

    return (
        jax.value_and_grad(net)(x), jax.hessian(lambda v: (v**3).sum())(x[0]), jax.jvp(net, (x,), (x,)),
        jax.vmap(jax.grad(lambda v: jnp.sin(v).prod()))(x),
    )  # fmt: skip


@program(shape(3, dtype=jnp.float32), {"a": shape(2), "b": [shape(), shape(5)]})
def pytrees(x, tree):
    return jax.tree.map(lambda v: v + x[0], tree), ()


@program(F, platforms=("cuda",))
def gpu_collectives(x):
    m = mesh(data=4, model=2)

    def body(x):
        sizes = jnp.ones(4, jnp.int32)
        ragged = lax.ragged_all_to_all(x[0], x[0], sizes, sizes, sizes, sizes, axis_name="data")
        return (
            lax.pbroadcast(x, ("data",), 1) + ragged.sum(),
            lax.pmin(x, ("model",)),
            lax.axis_index(("data", "model"))[None],
        )

    specs = P("data", "model"), P("data", "model"), P(("data", "model"))
    return jax.shard_map(body, mesh=m, in_specs=P("data", "model"), out_specs=specs, check_vma=False)(x)


@program(F, explicit=True)
def explicit_shardings(x):
    y = jax.sharding.reshard(x, P("data", "model"))
    return y * 2, jnp.einsum("ij,kj->ik", y, y, out_sharding=P("data", None))


@program(F)
def memory_kinds(x):
    m = mesh(data=8)
    host = jax.device_put(x, NamedSharding(m, P("data"), memory_kind="pinned_host"))
    return jax.device_put(host, NamedSharding(m, P("data"), memory_kind="device"))


@program(F, platforms=("cpu", "tpu"))
def platforms(x):
    return lax.platform_dependent(x, cpu=jnp.sin, default=jnp.cos)


@program(jax.ShapeDtypeStruct(jax.export.symbolic_shape("b, 4"), jnp.float32))
def symbolic_shapes(x):
    return jnp.concatenate([x, x]), x.reshape(-1), jnp.ones_like(x) @ jnp.ones((4, 3)), x[::2], jnp.arange(x.shape[0])
