"""The second half of `op_programs`: rows picked by index, convolutions, random numbers, control flow."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from op_programs import OPS, _draw, _index, _op

__all__ = ["OPS"]

# ---- gather

_op("embedding", lambda t, i: t[i], _draw(8, 8), _index(8, 8, 8))
_op("embedding_odd_rows", lambda t, i: t[i], _draw(10, 8), _index(10, 8))
_op("embedding_negative", lambda t, i: t[i - 8], _draw(8, 8), _index(8, 8))
_op("embedding_out_of_range", lambda t, i: t.at[i].get(mode="fill", fill_value=9.0), _draw(8, 8), _index(16, 8))
_op("embedding_clipped", lambda t, i: t.at[i].get(mode="clip"), _draw(8, 8), _index(16, 8))
_op("embedding_uint8", lambda t, i: t[i], _draw(8, 8), _index(8, 8, dtype="uint8"))
_op("embedding_int64", lambda t, i: t[i], _draw(8, 8), _index(8, 8, dtype="int64"))
_op("embedding_bf16", lambda t, i: t[i], _draw(8, 8, dtype="bfloat16"), _index(8, 8))
_op("embedding_bool", lambda t, i: t[i], _draw(8, 8, dtype="bool"), _index(8, 8))
_op("gather_columns", lambda t, i: t[:, i], _draw(8, 8), _index(8, 8))
_op("gather_pairs", lambda t, i, j: t[i, j], _draw(8, 8, 8), _index(8, 8), _index(8, 8))
_op("gather_windows", lambda t, i: jax.vmap(lambda k: lax.dynamic_slice(t, (k,), (3,)))(i), _draw(8), _index(8, 8))
_op("take_along", lambda x, i: jnp.take_along_axis(x, i, 1), _draw(8, 8), _index(8, 8, 4))
_op("batched_take", jax.vmap(lambda t, i: t[i]), _draw(8, 8, 4), _index(8, 8, 4))
_op("gather_then_sum", lambda t, i: t[i].sum(0) + 1, _draw(8, 8), _index(8, 8))

# ---- scatter: the whole family

for _mode in ("add", "set", "max", "min", "mul"):
    _op(
        f"scatter_{_mode}",
        lambda t, u, m=_mode: getattr(t.at[np.array([5, 0, 3, 6, 1, 7, 2, 4])], m)(u),
        _draw(8, 8),
        _draw(8, 8),
    )
_op("scatter_add_repeated", lambda t, i, u: t.at[i].add(u), _draw(8, 8), _index(4, 8), _draw(8, 8))
_op("scatter_add_int8", lambda t, i, u: t.at[i].add(u), _draw(8, 8, dtype="int8"), _index(8, 8), _draw(8, 8, dtype="int8"))
_op("scatter_add_dropped", lambda t, i, u: t.at[i].add(u, mode="drop"), _draw(8, 8), _index(20, 8), _draw(8, 8))
_op("scatter_negative", lambda t, i, u: t.at[i - 8].add(u), _draw(8, 8), _index(8, 8), _draw(8, 8))
_op("scatter_onto_zeros", lambda i, u: jnp.zeros((8, 8)).at[i].add(u), _index(8, 8), _draw(8, 8))
_op("scatter_pairs", lambda t, i, j, u: t.at[i, j].add(u), _draw(8, 8), _index(8, 8), _index(8, 8), _draw(8))
_op("scatter_columns", lambda t, i, u: t.at[:, i].add(u), _draw(8, 8), _index(8, 8), _draw(8, 8))
_op("set_row", lambda t: t.at[3].set(1.0), _draw(8, 8))
_op("set_column", lambda t, u: t.at[:, 3].set(u), _draw(8, 8), _draw(8))
_op("set_block", lambda t, u: t.at[2:4, 1:7].set(u), _draw(8, 8), _draw(2, 6))
_op("scatter_multiply", lambda t, i, u: t.at[i].multiply(u), _draw(8, 8), _index(8, 8), _draw(8, 8))
_op("scatter_max_repeated", lambda t, i, u: t.at[i].max(u), _draw(8, 8), _index(3, 8), _draw(8, 8))
_op("scatter_counts", lambda t: jnp.zeros(8).at[t[1:]].add(1), _index(8, 16))
_op("segment_sum", lambda x, i: jax.ops.segment_sum(x, i, 8), _draw(8, 8), _index(8, 8))
_op("segment_sum_odd", lambda x, i: jax.ops.segment_sum(x, i, 10), _draw(17, 8), _index(10, 17))
_op("segment_max", lambda x, i: jax.ops.segment_max(x, i, 8), _draw(8, 8), _index(8, 8))
_op("embedding_gradient", jax.grad(lambda t, i: (t[i] ** 2).sum()), _draw(8, 8), _index(8, 8, 4))
_op("embedding_gradient_odd", jax.grad(lambda t, i: (t[i] ** 2).sum()), _draw(10, 8), _index(10, 7))
_op("take_along_gradient", jax.grad(lambda x, i: (jnp.take_along_axis(x, i, 1) ** 2).sum()), _draw(8, 8), _index(8, 8, 4))
_op("batched_scatter", jax.vmap(lambda t, i, u: t.at[i].add(u)), _draw(8, 8), _index(8, 8, 4), _draw(8, 4))
_op("gather_scatter_edges", lambda x, s, r: jax.ops.segment_sum(jnp.sin(x[s]), r, 8), _draw(8, 8), _index(8, 24), _index(8, 24))

# ---- convolution, forward and both gradients


def _convolution(images: Any, kernel: Any, **settings: Any) -> Any:
    settings = {"window_strides": (1, 1), "padding": "SAME"} | settings
    return lax.conv_general_dilated(images, kernel, dimension_numbers=("NHWC", "HWIO", "NHWC"), **settings)


def _convolutions(name: str, images: Any, kernel: Any, **settings: Any) -> None:
    def loss(images: Any, kernel: Any) -> Any:
        return (_convolution(images, kernel, **settings) ** 2).sum()

    _op(f"{name}", lambda x, k: _convolution(x, k, **settings), images, kernel)
    _op(f"{name}_gradients", jax.grad(loss, (0, 1)), images, kernel)


_convolutions("convolution", _draw(4, 8, 8, 4), _draw(3, 3, 4, 8))
_convolutions("convolution_strided", _draw(4, 8, 8, 4), _draw(3, 3, 4, 8), window_strides=(2, 2))
_convolutions("convolution_17", _draw(4, 17, 17, 4), _draw(3, 3, 4, 4), window_strides=(2, 1), padding="VALID")
_convolutions("convolution_pointwise", _draw(4, 8, 8, 4), _draw(1, 1, 4, 8))
_convolutions("convolution_dilated", _draw(4, 8, 8, 4), _draw(3, 3, 4, 4), rhs_dilation=(2, 2))
_convolutions("convolution_upsampling", _draw(4, 4, 4, 4), _draw(3, 3, 4, 4), lhs_dilation=(2, 2), padding=((1, 2), (2, 1)))
_convolutions("convolution_grouped", _draw(4, 4, 4, 8), _draw(3, 3, 2, 8), feature_group_count=4)
_convolutions("convolution_depthwise", _draw(4, 4, 4, 8), _draw(3, 3, 1, 8), feature_group_count=8)
_convolutions("convolution_patches", _draw(4, 8, 8, 4), _draw(4, 4, 4, 8), window_strides=(4, 4), padding="VALID")
_op("convolution_full_window", lambda x, k: _convolution(x, k, padding="VALID"), _draw(4, 4, 4, 4), _draw(4, 4, 4, 8))
_op(
    "convolution_per_example_gradients",
    jax.vmap(jax.grad(lambda k, x: (_convolution(x[None], k) ** 2).sum()), (None, 0)),
    _draw(3, 3, 4, 4),
    _draw(8, 4, 4, 4),
)

# ---- random numbers are those of one device

_key = np.array([7, 9], dtype="uint32")
_op("random_normal", lambda k, x: x + jax.random.normal(k, (8, 8)), _key, _draw(8, 8))
_op("random_bits", lambda k, x: x + jax.random.bits(k, (8, 8)), _key, _index(9, 8, 8, dtype="uint32"))
_op("dropout", lambda k, x: jnp.where(jax.random.bernoulli(k, 0.5, x.shape), x, 0) @ x, _key, _draw(8, 8))
_op("random_split", lambda k, x: jax.vmap(lambda k, r: r * jax.random.uniform(k))(jax.random.split(k, 8), x), _key, _draw(8, 8))
_op("random_permutation", lambda k, x: jax.random.permutation(k, x), _key, _draw(8, 8))
_op("random_categorical", lambda k, x: jax.random.categorical(k, x), _key, _draw(8, 8))
_op(
    "random_rbg",
    lambda x: x + jax.random.normal(jax.random.key(3, impl="rbg"), (8, 8)),
    _draw(8, 8),
)
_op(
    "dropout_checkpointed",
    jax.grad(jax.checkpoint(lambda x, k: (jnp.sin(jnp.where(jax.random.bernoulli(k, 0.5, x.shape), x, 0) @ x) ** 2).sum())),
    _draw(8, 8),
    _key,
)

# ---- control flow

_op("scan", lambda c, x: lax.scan(lambda c, x: (jnp.tanh(c + x), c * x), c, x), _draw(8), _draw(4, 8))
_op("scan_sum", lambda w, x: lax.scan(lambda c, r: (c + r @ w, None), jnp.zeros(8), x)[0], _draw(8, 8), _draw(4, 8))
_op(
    "scan_gradient",
    jax.grad(lambda w, x: (lax.scan(lambda c, r: (jnp.tanh(c @ w + r), None), x[0], x)[0] ** 2).sum()),
    _draw(8, 8),
    _draw(4, 8),
)
_op("fori_loop", lambda x: lax.fori_loop(0, 3, lambda i, c: jnp.sin(c) + i, x), _draw(8, 8))
_op("while_loop", lambda x: lax.while_loop(lambda c: jnp.sum(c**2) > 1, lambda c: c / 2, x), _draw(8, 8))
_op("cond", lambda p, x: lax.cond(p.sum() > 0, jnp.sin, jnp.cos, x), _draw(8), _draw(8, 8))
_op("switch", lambda i, x: lax.switch(i, [jnp.sin, jnp.cos, lambda x: x @ x], x), np.int32(2), _draw(8, 8))
_op(
    "while_in_cond",
    lambda x: lax.cond(x.sum() > -100, lambda x: lax.while_loop(lambda c: c.sum() > 1, lambda c: c - 1, x), jnp.sin, x),
    _draw(8, 8),
)
_op("map", lambda x, w: lax.map(lambda r: r @ w, x), _draw(8, 8), _draw(8, 8))
_op(
    "microbatches",
    lambda w, x: lax.scan(lambda c, r: (c + r.T @ (r @ w), None), jnp.zeros((8, 8)), x.reshape(4, 4, 8))[0],
    _draw(8, 8),
    _draw(16, 8),
)
_op(
    "gather_in_scan_gradient",
    jax.grad(lambda t, i: lax.scan(lambda c, k: (c + t[k].sum() ** 2, None), 0.0, i)[0]),
    _draw(8, 8),
    _index(8, 4, 8),
)
_op("loop_reads_outside", lambda x, w: lax.fori_loop(0, 3, lambda i, c: jnp.tanh(c @ w) + x, x), _draw(8, 8), _draw(8, 8))
_op("remat", jax.grad(jax.checkpoint(lambda w, x: (jnp.tanh(x @ w) @ w).sum())), _draw(8, 8), _draw(8, 8))
_op("custom_vjp", jax.grad(lambda x: jax.nn.relu(x).sum() + jax.nn.gelu(x).sum() + (jnp.linalg.norm(x))), _draw(8, 8))
_op("nested_jit", lambda x: jax.jit(jnp.sin)(x) + jax.jit(lambda y: y @ y)(x), _draw(8, 8))
