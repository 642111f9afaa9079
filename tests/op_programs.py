"""Programs of one op or a few, for every kind of op, with concrete arguments: `OPS[name]` is (function, arguments).

Sizes of 8 divide by every axis of the test meshes; 6, 7, 10 and 17 are there because they do not. Numbers in short types
are small and whole, so that a sum is the same in any order.
"""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

OPS: dict[str, tuple[Callable[..., Any], tuple[Any, ...]]] = {}


def _draw(*shape: int, dtype: Any = "float64", low: int = -2, high: int = 3) -> Any:
    """Normal numbers in float64 and complex128; small whole ones in other types; the same in every run."""
    rng = np.random.default_rng([len(OPS), *shape])
    if dtype == "float64":
        return rng.standard_normal(shape)
    if dtype == "complex128":
        return rng.standard_normal(shape) + 1j * rng.standard_normal(shape)
    if dtype == "bool":
        return rng.integers(2, size=shape).astype(bool)
    unsigned = jnp.issubdtype(jnp.dtype(dtype), jnp.unsignedinteger)
    return np.asarray(rng.integers(0 if unsigned else low, high, size=shape)).astype(jnp.dtype(dtype))


def _index(bound: int, *shape: int, dtype: str = "int32") -> Any:
    return np.random.default_rng([bound, *shape]).integers(bound, size=shape).astype(dtype)


def _op(name: str, fun: Callable[..., Any], *args: Any) -> None:
    assert name not in OPS
    OPS[name] = (fun, args)


# ---- pointwise, and chlo's pointwise ops

_op("add", lambda x, y: x + y, _draw(8, 8), _draw(8, 8))
_op("broadcast_add", lambda x, y: x + y, _draw(8, 8, 8), _draw(8, 1))
_op("select", jnp.where, _draw(8, 8, dtype="bool"), _draw(8, 8), _draw(8, 8))
_op("select_by_scalar", lambda p, x, y: lax.select(p, x, y), np.array(True), _draw(8, 8), _draw(8, 8))
_op("clamp", lambda lo, x, hi: lax.clamp(lo, x, hi), np.array(-0.5), _draw(8, 8), np.array(0.5))
_op("compare", lambda x, y: (x > y, x == y), _draw(8, 8, dtype="int32"), _draw(8, 8, dtype="int32"))
_op("erf", lambda x: jax.scipy.special.erf(x) + jax.scipy.special.erfinv(jnp.tanh(x)), _draw(8, 8))
_op("chlo", lambda x: jnp.sinh(x) + jnp.arccosh(2 + x * x) + jnp.square(jnp.tan(x)), _draw(8, 8))
_op("lgamma", lambda x: jax.scipy.special.gammaln(x * x + 1) + jax.scipy.special.digamma(x * x + 1), _draw(8, 8))
_op("nextafter", lambda x, y: jnp.nextafter(x, y), _draw(8, 8), _draw(8, 8))
_op("convert", lambda x: x.astype(jnp.float32).astype(jnp.int32), _draw(8, 8))
_op("bitcast", lambda x: lax.bitcast_convert_type(x, jnp.int32), _draw(8, 8))
_op("reduce_precision", lambda x: lax.reduce_precision(x, 8, 7), _draw(8, 8))
_op("bits", lambda x: (lax.population_count(x), lax.clz(x), ~x, x << 1), _draw(8, 8, dtype="uint32"))
_op("complex_parts", lambda x: (x.real, x.imag, jnp.conj(x), jnp.abs(x)), _draw(8, 8, dtype="complex128"))
_op("integer_pow", lambda x: x**3 + jnp.remainder(x, 3.0) + jnp.atan2(x, 2.0), _draw(8, 8))

# ---- contractions

_op("matmul", lambda x, w: x @ w, _draw(8, 8), _draw(8, 8))
_op("matmul_complex", lambda x, w: x @ w, _draw(8, 8, dtype="complex128"), _draw(8, 8, dtype="complex128"))
_op("matmul_bf16", lambda x, w: x @ w, _draw(8, 8, dtype="bfloat16"), _draw(8, 8, dtype="bfloat16"))
_op("matmul_int8", lambda x, w: x @ w, _draw(8, 8, dtype="int8"), _draw(8, 8, dtype="int8"))
_op("batched_matmul", lambda x, w: x @ w, _draw(8, 8, 8), _draw(8, 8, 8))
_op("attention_scores", lambda q, k: jnp.einsum("bqnh,bsnh->bnqs", q, k), _draw(4, 8, 8, 2), _draw(4, 8, 8, 2))
_op("attention_mix", lambda w, v: jnp.einsum("bnqs,bsnh->bqnh", w, v), _draw(4, 8, 8, 8), _draw(4, 8, 8, 2))
_op("einsum_chain", lambda a, b, c: jnp.einsum("ij,jk,kl->il", a, b, c), _draw(8, 8), _draw(8, 8), _draw(8, 8))
_op("einsum_row_dots", lambda a, b: jnp.einsum("bi,bi->b", a, b), _draw(8, 8), _draw(8, 8))
_op("einsum_outer", lambda a, b: jnp.einsum("i,j->ij", a, b), _draw(8), _draw(8))
_op("einsum_two_sums", lambda a, b: jnp.einsum("bij,bij->b", a, b), _draw(8, 8, 4), _draw(8, 8, 4))
_op("matmul_by_itself", lambda x: x @ x.T, _draw(8, 8))
_op("trace", lambda x: jnp.trace(x) + jnp.einsum("ii->i", x).sum(), _draw(8, 8))

# ---- reductions of every kind and type

for _kind in ("sum", "max", "min", "prod"):
    for _dtype in ("float64", "bfloat16", "float16", "int8"):
        _op(f"{_kind}_{_dtype}", lambda x, name=_kind: [getattr(jnp, name)(x, d) for d in (0, 1)], _draw(8, 8, dtype=_dtype))
_op("sum_all", lambda x: x.sum(), _draw(8, 8, 4))
_op("sum_complex", lambda x: (x.sum(0), x.prod(1)), _draw(8, 8, dtype="complex128"))
_op("sum_uint8", lambda x: jnp.sum(x, 0, dtype="uint8"), _draw(8, 8, dtype="uint8"))
_op("any_all", lambda x: (x.any(0), x.all(1), x.any()), _draw(8, 8, dtype="bool"))
_op("bitwise_reduce", lambda x: (lax.reduce_and(x, [0]), lax.reduce_or(x, [1]), lax.reduce_xor(x, [0])), _index(99, 8, 8))
_op("argmax", lambda x: (jnp.argmax(x, 0), jnp.argmin(x, 1), jnp.argmax(x)), _draw(8, 8))
_op("argmax_ties", lambda x: (jnp.argmax(x, 0), jnp.argmin(x, 1)), _draw(8, 8, dtype="int8"))
_op("argmax_bf16", lambda x: (jnp.argmax(x, 0), jnp.argmax(x, 1)), _draw(8, 8, dtype="bfloat16"))
_op("logsumexp", lambda x: jax.nn.logsumexp(x, 0), _draw(8, 8))
_op("softmax", lambda x: jax.nn.softmax(x, 1), _draw(8, 8))
_op("var", lambda x: (jnp.var(x, 0), jnp.mean(x, 1), jnp.linalg.norm(x)), _draw(8, 8))
_op("median", lambda x: (jnp.median(x, 0), jnp.quantile(x, 0.3, 1)), _draw(8, 8))
_op("reduce_with_init", lambda x: lax.reduce(x, np.float64(3), lax.add, [0]), _draw(8, 8))
_op("reduce_max_with_init", lambda x: lax.reduce(x, np.float64(0.5), lax.max, [1]), _draw(8, 8))
_op(
    "reduce_two",
    lambda x, y: lax.reduce((x, y), (0.0, 0.0), lambda a, b: (a[0] + b[0], a[1] + b[1]), [0]),
    _draw(8, 8),
    _draw(8, 8),
)
_op("reduce_own_body", lambda x: lax.reduce(x, np.float64(0), lambda a, b: a + b + a * b, [0]), 0.1 * _draw(8, 8))

# ---- what an unreduced sum meets on its way

_op("sum_plus_whole", lambda x, w, b: x @ w + b, _draw(8, 8), _draw(8, 8), _draw(8))
_op("sum_minus_whole", lambda x, w, b: (b - x @ w).T, _draw(8, 8), _draw(8, 8), _draw(8, 8))
_op("sum_scaled", lambda x, w, s: (x @ w) * s / 3, _draw(8, 8), _draw(8, 8), _draw(8, 8))
_op("sum_divided_integers", lambda x: x.sum(0) // 3, _index(50, 8, 8))
_op("lax_div_integers", lambda x: lax.div(jnp.sum(x, 0, dtype=x.dtype), jnp.full((8,), 3, x.dtype)), _index(50, 8, 8))
_op("sum_squared", lambda x, w: (x @ w) ** 2, _draw(8, 8), _draw(8, 8))
_op("sum_of_sums", lambda x, w, v: x @ w + x @ v + 1, _draw(8, 8), _draw(8, 8), _draw(8, 8))
_op("sum_times_itself", lambda x, w: (y := x @ w) * y + y, _draw(8, 8), _draw(8, 8))
_op("sum_masked", lambda x, w, m: jnp.where(m, x @ w, -1.0), _draw(8, 8), _draw(8, 8), _draw(8, 8, dtype="bool"))
_op("sum_padded", lambda x, w: jnp.pad(x @ w, ((1, 1), (0, 2)), constant_values=2.0), _draw(8, 8), _draw(8, 8))
_op("sum_zero_padded", lambda x, w: jnp.pad(x @ w, ((1, 1), (0, 2))), _draw(8, 8), _draw(8, 8))
_op("sum_reduced", lambda x, w: ((x @ w).sum(), (x @ w).max(0)), _draw(8, 8), _draw(8, 8))
_op("sum_widened", lambda x: x.sum(0).astype(jnp.float64), _draw(8, 8, dtype="float32"))
_op("sum_narrowed", lambda x: x.sum(0).astype(jnp.int8), _index(90, 8, 8))
_op("sum_concatenated", lambda x, w, y: jnp.concatenate([x @ w, y]), _draw(8, 8), _draw(8, 8), _draw(8, 8))
_op("sum_sliced", lambda x, w: ((x @ w)[1:5], (x @ w)[::-1]), _draw(8, 8), _draw(8, 8))
_op("sum_dotted", lambda x, w, v: (x @ w) @ v, _draw(8, 8), _draw(8, 8), _draw(8, 8))
_op(
    "sum_updated",
    lambda x, w, u: lax.dynamic_update_slice(x @ w, u, (np.int32(2), np.int32(3))),
    _draw(8, 8),
    _draw(8, 8),
    _draw(2, 2),
)
_op("max_of_max", lambda x, y: jnp.maximum(x.max(0), y.max(0)), _draw(8, 8), _draw(8, 8))
_op("max_reshaped", lambda x: jnp.max(x, 0).reshape(2, 4) * 2, _draw(8, 8))
_op("complex_of_sums", lambda x, w: lax.complex(x @ w, x @ w), _draw(8, 8), _draw(8, 8))
_op("real_of_sum", lambda x, w: (x @ w).real, _draw(8, 8, dtype="complex128"), _draw(8, 8, dtype="complex128"))

# ---- windows, scans along a dim, sorts

_op("cumsum", lambda x: (jnp.cumsum(x, 0), jnp.cumprod(x, 1), lax.cummax(x, 0), lax.cumlogsumexp(x, 1)), _draw(8, 8))
_op("cumsum_reverse", lambda x: lax.cumsum(x, 0, reverse=True), _draw(8, 8))
_op("max_pool", lambda x: lax.reduce_window(x, -jnp.inf, lax.max, (1, 2, 2), (1, 2, 2), "VALID"), _draw(8, 8, 8))
_op("average_pool", lambda x: lax.reduce_window(x, 0.0, lax.add, (1, 3, 3), (1, 1, 1), "SAME"), _draw(8, 8, 8))
_op(
    "max_pool_gradient",
    jax.grad(lambda x: (lax.reduce_window(x, -jnp.inf, lax.max, (1, 2, 2), (1, 2, 2), "VALID") ** 2).sum()),
    _draw(8, 8, 8),
)
_op("sort", lambda x: (jnp.sort(x, 0), jnp.sort(x, 1, descending=True)), _draw(8, 8))
_op("argsort", lambda x: (jnp.argsort(x, 0), jnp.argsort(x, 1, stable=True)), _draw(8, 8, dtype="int8"))
_op("sort_by_keys", lambda x, y: lax.sort((x, y), dimension=0, num_keys=2), _draw(8, 8, dtype="int32"), _draw(8, 8))
_op("top_k", lambda operand: lax.top_k(operand, 3), _draw(8, 8))
_op("top_k_ties", lambda x: lax.top_k(x, 3), _draw(8, 16, dtype="int32"))
_op("vmap_sort", jax.vmap(jnp.sort), _draw(8, 8))
_op("searchsorted", lambda x, y: jnp.searchsorted(jnp.sort(x), y), _draw(8), _draw(8))
_op("unique_counts", lambda x: jnp.bincount(x, length=10), _index(10, 8))

# ---- decompositions and transforms (custom calls on CPU)

_spd = _draw(8, 4, 4) @ _draw(8, 4, 4).swapaxes(1, 2) + 4 * np.eye(4)
_op("cholesky", jnp.linalg.cholesky, _spd)
_op("triangular_solve", lambda a, b: jax.scipy.linalg.solve_triangular(jnp.tril(a), b, lower=True), _spd, _draw(8, 4, 4))
_op("eigvalsh", jnp.linalg.eigvalsh, _spd)
_op("solve", jnp.linalg.solve, _spd, _draw(8, 4, 4))
_op("inverse", jnp.linalg.inv, _spd)
_op("qr", lambda x: jnp.abs(jnp.linalg.qr(x)[1]), _spd)
_op("svd_values", lambda x: jnp.linalg.svd(x, compute_uv=False), _spd)
_op("fft", jnp.fft.fft, _draw(8, 8, dtype="complex128"))
_op("rfft2", jnp.fft.rfft2, _draw(8, 8, 8))

# ---- shapes

_op("transpose", lambda x: x.transpose(2, 0, 1), _draw(8, 4, 6))
_op("merge", lambda x: jnp.sin(x).reshape(32, 8), _draw(8, 4, 8))
_op("merge_then_split", lambda x: jnp.sin(jnp.sin(x).reshape(32)).reshape(2, 16), _draw(8, 4))
_op("split", lambda x: jnp.sin(x.reshape(8, 4, 8)), _draw(32, 8))
_op("split_inner", lambda x: jnp.sin(x.reshape(3, 8)).sum(1), _draw(24))
_op("regroup", lambda x: jnp.sin(x.reshape(4, 12)), _draw(8, 6))
_op("squeeze_expand", lambda x: jnp.sin(x[:, 0])[None, :, None], _draw(8, 1, 8))
_op("broadcast", lambda x: jnp.broadcast_to(x, (4, 8, 8)), _draw(8, 8))
_op("tile_repeat", lambda x: (jnp.tile(x, (2, 1)), jnp.repeat(x, 2, 0)), _draw(8, 4))
_op("reverse", lambda x: (x[::-1], jnp.flip(x, 1)), _draw(8, 8))
_op("roll", lambda x: jnp.roll(x, 3, 0), _draw(8, 8))
_op("iota", lambda x: x + jnp.arange(8)[:, None] * 10 + lax.broadcasted_iota("float64", (8, 8), 1), _draw(8, 8))
_op("eye_tril", lambda x: x * jnp.tril(jnp.ones((8, 8))) + jnp.eye(8), _draw(8, 8))
_op("one_hot", lambda i: jax.nn.one_hot(i, 8, dtype="float64"), _index(8, 8))
_op("literal", lambda x: x + np.arange(64.0).reshape(8, 8), _draw(8, 8))
_op("meshgrid", lambda x, y: jnp.meshgrid(x, y, indexing="ij"), _draw(8), _draw(8))
_op("kron", jnp.kron, _draw(4, 4), _draw(2, 2))

# ---- slices, pads, concatenations: aligned with the pieces and not

_op("slice_block", lambda x: (x[:4], x[4:]), _draw(8, 8))
_op("slice_thirds", lambda x: jnp.split(jnp.sin(x), 3, 1), _draw(8, 24))
_op("slice_middle", lambda x: x[2:6, 1:8], _draw(8, 8))
_op("slice_one", lambda x: (x[3], x[:, 5]), _draw(8, 8))
_op("slice_strided", lambda x: (x[::2], x[1::3, ::4]), _draw(8, 8))
_op("slice_gradient", jax.grad(lambda x: (x[:4] ** 2).sum() + (x[:, 4:] ** 3).sum()), _draw(8, 8))
_op("pad_block", lambda x: (jnp.pad(x, ((8, 0), (0, 0))), jnp.pad(x, ((0, 16), (0, 0)))), _draw(8, 4))
_op("pad_uneven", lambda x: jnp.pad(x, ((1, 7), (3, 5)), constant_values=7.0), _draw(8, 8))
_op("pad_block_value", lambda x: jnp.pad(x, ((8, 8), (0, 0)), constant_values=7.0), _draw(8, 8))
_op("pad_interior", lambda x: lax.pad(x, 1.0, ((0, 0, 1), (-1, -1, 0))), _draw(8, 8))
_op("pad_shift", lambda x: (lax.pad(x, 1.0, ((1, -1, 0), (0, 0, 0))), lax.pad(x, 1.0, ((0, 0, 0), (-2, 2, 0)))), _draw(8, 8))
_op("pad_both_dims", lambda x: jnp.pad(x, ((8, 0), (0, 8)), constant_values=2.0), _draw(8, 8))
_op("concatenate", lambda x, y: jnp.concatenate([x, y], 1), _draw(8, 8), _draw(8, 8))
_op("concatenate_itself", lambda x: jnp.concatenate([x, jnp.sin(x), x]), _draw(8, 8))
_op("concatenate_uneven", lambda x, y: jnp.concatenate([x, y], 0), _draw(8, 8), _draw(3, 8))
_op("stack", lambda x, y: jnp.stack([x, y], 1), _draw(8, 8), _draw(8, 8))
_op("dynamic_slice", lambda x, i: lax.dynamic_slice(x, (i, np.int32(0)), (2, 8)), _draw(8, 8), np.int32(5))
_op("dynamic_slice_clamped", lambda x, i: lax.dynamic_slice(x, (i, i), (3, 4)), _draw(8, 8), np.int32(7))
_op("dynamic_slice_then_cut", lambda x, y, i: lax.dynamic_slice(x, (i,), (4,)) * y, _draw(8), _draw(4), np.int32(7))
_op(
    "dynamic_slice_then_reshaped",
    lambda x, y, i: lax.dynamic_slice(x, (i,), (8,)).reshape(4, 2) * y,
    _draw(16),
    _draw(4, 2),
    np.int32(15),
)
_op(
    "dynamic_update_then_cut",
    lambda x, u, y, i: lax.dynamic_update_slice(x, u, (i,)) * y,
    _draw(8),
    _draw(4),
    _draw(8),
    np.int32(7),
)
_op(
    "dynamic_update_of_slice", lambda x, y, i: lax.dynamic_update_slice(x, x[:4], (i,))[:4] * y, _draw(8), _draw(4), np.int32(2)
)
_op(
    "windows_then_cut",
    lambda x, y, i: jax.vmap(lambda j: lax.dynamic_slice(x, (j,), (4,)))(i) * y,
    _draw(8),
    _draw(4),
    np.array([7, -3, 2]),
)
_op(
    "window_then_cut",
    lambda x, y, i: lax.gather(x, i, lax.GatherDimensionNumbers((0,), (), (0,)), (4,), mode="clip") * y,
    _draw(8),
    _draw(4),
    np.array([7]),
)
_op("dynamic_update", lambda x, u, i: lax.dynamic_update_slice(x, u, (i, np.int32(0))), _draw(8, 8), _draw(2, 8), np.int32(3))
_op("dynamic_update_row", lambda x, u, i: x.at[i].set(u), _draw(8, 8), _draw(8), np.int32(6))
