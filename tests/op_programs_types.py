"""Programs of unusual values, as those of `op_programs`: short types, sizes of 0 and 1, keys, closed-over arrays, calls that
nobody sees into: `TYPES[name]` is (function, arguments)."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.experimental import pallas
from op_programs import _draw, _index

TYPES: dict[str, tuple[Callable[..., Any], tuple[Any, ...]]] = {}


def _op(name: str, fun: Callable[..., Any], *args: Any) -> None:
    assert name not in TYPES
    TYPES[name] = (fun, args)


# ---- types

FLOAT8 = ("float8_e4m3fn", "float8_e5m2")
SHORT = (*FLOAT8, "bfloat16", "int4", "uint4", "bool", "complex64")

for _dtype in SHORT:
    _op(
        f"moved_{_dtype}",
        lambda x, y, i: (jnp.concatenate([x, y]), x[i], x.T[2:6], jnp.where(x == y, x, y), x.at[i].set(y), jnp.flip(x, 0)),
        *(_draw(8, 8, dtype=_dtype), _draw(8, 8, dtype=_dtype), _index(8, 8)),
    )
for _dtype in FLOAT8:
    _op(
        f"matmul_{_dtype}",
        lambda x, w: lax.dot(x, w, preferred_element_type=jnp.float32),
        *(_draw(8, 8, dtype=_dtype), _draw(8, 8, dtype=_dtype)),
    )
    _op(f"reduced_{_dtype}", lambda x: (x.astype("float32").sum(0).astype(x.dtype), jnp.max(x, 1)), _draw(8, 8, dtype=_dtype))
for _dtype in ("int4", "uint4"):
    _op(
        f"arithmetic_{_dtype}",
        lambda x, y: (x + y, x * y, x < y, x.astype("int8").sum(0), jnp.max(x, 1), x.astype("int8") @ y.astype("int8")),
        *(_draw(8, 8, dtype=_dtype), _draw(8, 8, dtype=_dtype)),
    )
_op(
    "booleans",
    lambda x, y: (x ^ y, jnp.cumsum(x, 0), jnp.sort(x, 0), jnp.argmax(x, 1), x.sum(0), jnp.logical_not(x) @ y, x.prod(1)),
    *(_draw(8, 8, dtype="bool"), _draw(8, 8, dtype="bool")),
)
_op(
    "complex_gradients",
    jax.grad(lambda x, w: jnp.abs(jnp.fft.fft(x @ w) * jnp.conj(x)).sum(), (0, 1)),
    *(_draw(8, 8, dtype="complex128"), _draw(8, 8, dtype="complex128")),
)
_op("bitcast_narrow", lambda x: (lax.bitcast_convert_type(x, jnp.uint8), x.view(jnp.uint16)), _draw(8, 8, dtype="float32"))
_op("bitcast_wide", lambda x: lax.bitcast_convert_type(x, jnp.float64), _draw(8, 8, 2, dtype="int32"))

# ---- no elements, one element

_op(
    "nothing",
    lambda x, empty: (
        *(
            jnp.concatenate([x, empty]),
            empty + 1,
            x[:0],
            x @ empty.T,
            empty.T @ empty,
            empty.sum(0),
            empty.sum(1),
            x.at[:0].set(2),
        ),
        *(jnp.sort(empty, 0), jnp.cumsum(empty, 0), empty.reshape(4, 0), jnp.pad(empty, ((2, 0), (0, 0))), jnp.flip(empty)),
    ),
    *(_draw(8, 8), np.zeros((0, 8))),
)
_op(
    "nothing_picked", lambda x, i: (x[i], x.at[i].add(x[i]), jax.ops.segment_sum(x[i], i, 8)), _draw(8, 8), np.zeros(0, "int32")
)
_op("nothing_scanned", lambda x: lax.scan(lambda c, r: (c + r, c), x[0], x[:0]), _draw(8, 8))
_op(
    "scalars",
    lambda s, n, p: (jnp.sin(s), s * n, jnp.where(p, s, -s), s.reshape(1, 1)),
    np.float64(2),
    np.int32(3),
    np.array(True),
)
_op("scalar_with_array", lambda s, x: (s * x).sum() + x[0, 0] + jnp.reshape(x[:1, :1], ()), np.float64(2), _draw(8, 8))
_op("ones_in_shape", lambda x, y: (x @ y.T, x + y, x.sum(1), x[:, 0]), _draw(8, 1), _draw(8, 1))

# ---- typed keys: arguments, results, stacks of them

_op("key", lambda k, x: x + jax.random.normal(k, x.shape), jax.random.key(3), _draw(8, 8))
_op("key_rbg", lambda k, x: x + jax.random.normal(k, x.shape), jax.random.key(3, impl="rbg"), _draw(8, 8))
_op("key_unsafe_rbg", lambda k, x: x + jax.random.uniform(k, x.shape), jax.random.key(3, impl="unsafe_rbg"), _draw(8, 8))
_op(
    "keys_per_row",
    lambda k, x: jax.vmap(lambda k, r: r + jax.random.normal(k, r.shape))(k, x),
    *(jax.random.split(jax.random.key(3), 8), _draw(8, 8)),
)
_op("keys_split", lambda k: (jax.random.split(k, 8), jax.random.fold_in(k, 2), jax.random.key_data(k)), jax.random.key(3))
_op("keys_picked", lambda k, i: (k[i], k[2:6], k.reshape(2, 4)), jax.random.split(jax.random.key(3), 8), _index(8, 8))

# ---- arrays that are closed over: the large ones become arguments

_LARGE = {name: _draw(64, 64, dtype=name) for name in ("float64", *SHORT)}
_op("closed_over", lambda x: x @ _LARGE["float64"], _draw(8, 64))
_op("closed_over_short", lambda x: [jnp.where(x > 0, _LARGE[name], _LARGE[name][::-1]) for name in SHORT], _draw(64, 64))
_op("closed_over_twice", lambda x: lax.scan(lambda c, r: (c @ _LARGE["float64"] / 64 + r, None), x[0], x)[0], _draw(8, 64))

# ---- calls

_op("approx_max_k", lambda x: lax.approx_max_k(x, 3), _draw(8, 8))
_op("composite", lambda x: lax.composite(lambda y: jnp.tanh(y) @ y, "tests.mixed")(x), _draw(8, 8))
_op("platform_dependent", lambda x: lax.platform_dependent(x, cpu=jnp.sin, default=jnp.cos), _draw(8, 8))
_op("lu", jax.vmap(jax.scipy.linalg.lu), _draw(8, 4, 4))
_op("schur", lambda x: jax.scipy.linalg.schur(x)[0], _draw(8, 8))
_op(
    "batched_factorisations",
    lambda x: (
        jnp.linalg.eigvals(x),
        lax.linalg.hessenberg(x)[1],
        lax.linalg.tridiagonal(x)[1],
        jax.vmap(jax.scipy.linalg.expm)(x),
    ),
    _draw(8, 4, 4),
)
_op("batched_schur", lambda x: lax.linalg.schur(x)[0], _draw(8, 4, 4))
_op("batched_tridiagonal_solve", lambda d, b: lax.linalg.tridiagonal_solve(d, d + 8, d, b), _draw(8, 4), _draw(8, 4, 2))
_op("fft_of_rows", lambda x: jnp.fft.irfft(jnp.fft.rfft(x, axis=0) * 2, axis=0), _draw(8, 8))


def _kernel(x: Any, y: Any, out: Any) -> None:
    out[...] = x[...] * y[...] + 1


_op(
    "pallas",
    lambda x, y: pallas.pallas_call(
        _kernel, out_shape=jax.ShapeDtypeStruct(x.shape, x.dtype), grid=(4,), interpret=True,
        in_specs=[pallas.BlockSpec((2, 8), lambda i: (i, 0))] * 2, out_specs=pallas.BlockSpec((2, 8), lambda i: (i, 0)),
    )(x, y),
    *(_draw(8, 8), _draw(8, 8)),
)  # fmt: skip
