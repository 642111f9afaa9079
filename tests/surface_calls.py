"""How to call those functions of JAX whose own parameters do not say it; and which are not called, and why.

Parameters stand for the arrays of `surface.ARRAYS`: x and y are (8, 8), v and w (8,), t (8, 8, 8) of floats; i and j of int32,
u of uint32, b of bool, c of complex numbers; n and s are scalars; spd is positive definite.
"""

import importlib
from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.sharding import AbstractMesh, AxisType
from jax.sharding import PartitionSpec as P

_NOT_AN_OP = """
    lax.ConvGeneralDilatedDimensionNumbers lax.DotDimensionNumbers lax.PrecisionLike lax.broadcast_shapes
    lax.conv_dimension_numbers lax.conv_general_permutations lax.conv_general_shape_tuple lax.conv_shape_tuple
    lax.conv_transpose_shape_tuple lax.dtype lax.padtype_to_pads lax.reduce_window_shape_tuple
    numpy.array_repr numpy.array_str numpy.broadcast_shapes numpy.can_cast numpy.einsum_path numpy.get_printoptions
    numpy.isdtype numpy.isscalar numpy.issubdtype numpy.iterable numpy.iscomplexobj numpy.isrealobj numpy.ndim
    numpy.printoptions numpy.promote_types numpy.result_type numpy.set_printoptions numpy.shape numpy.size
    nn.get_scaled_dot_general_config random.key_dtype random.key_impl random.Key
"""
_HOST = """
    numpy.frombuffer numpy.fromfile numpy.fromiter numpy.fromstring numpy.from_dlpack numpy.load numpy.save numpy.savez
"""
_SIZED_BY_DATA = "numpy.compress numpy.mask_indices numpy.trim_zeros scipy.special.bernoulli"
_NOT_ON_CPU = "lax.pbroadcast lax.psend lax.precv lax.ragged_all_to_all nn.scaled_matmul"

LEFT_OUT: Mapping[str, str] = {
    **dict.fromkeys(_NOT_AN_OP.split(), "computes no array: it is about shapes, types or printing"),
    **dict.fromkeys(_HOST.split(), "reads or writes the host's memory or files"),
    **dict.fromkeys(_SIZED_BY_DATA.split(), "the size of its result depends on the data: jax.jit refuses it"),
    "lax.psum_scatter_start": "half of an asynchronous collective, whose other half is no function of JAX's",
    "lax.create_token": "makes a token, which orders effects: no array",
    "lax.after_all": "joins tokens, which order effects: no array",
    **dict.fromkeys(_NOT_ON_CPU.split(), "JAX lowers it for GPU (or TPU) alone"),
}
"""By name: why a public function is not called."""

Call = Callable[..., Any]

_CONV = ("NHWC", "HWIO", "NHWC")
_ROWS = lax.GatherDimensionNumbers(offset_dims=(1,), collapsed_slice_dims=(0,), start_index_map=(0,))
_PLACED = lax.ScatterDimensionNumbers(update_window_dims=(1,), inserted_window_dims=(0,), scatter_dims_to_operand_dims=(0,))
_MESH = AbstractMesh((4, 2), ("data", "model"), axis_types=(AxisType.Auto,) * 2)


def _per_device(fun: Call) -> Call:
    """A collective of the user's own, inside a `shard_map`."""
    return lambda x: jax.shard_map(fun, mesh=_MESH, in_specs=P("data"), out_specs=P("data"), check_vma=False)(x)


FAMILIES: list[tuple[str, str, Callable[[Any], Call]]] = [
    # Those called alike: module, names, and how to call one of them.
    ("lax", "bitwise_and bitwise_or bitwise_xor shift_left shift_right_arithmetic shift_right_logical mulhi",
     lambda f: lambda i, u: f(i, u.astype(i.dtype))),
    ("lax", "bitwise_not clz population_count", lambda f: lambda i: f(i)),
    ("lax", "imag real", lambda f: lambda c: f(c)),
    ("lax", "argmax argmin", lambda f: lambda x: f(x, 0, "int32")),
    ("lax", "reduce_max reduce_min reduce_prod reduce_sum", lambda f: lambda x: f(x, (0,))),
    ("lax", "reduce_and reduce_or", lambda f: lambda b: f(b, (0,))),
    ("lax", "scatter scatter_add scatter_max scatter_min scatter_mul scatter_sub",
     lambda f: lambda x, j, y: f(x, j[:, None], y, _PLACED)),
    ("lax", "approx_max_k approx_min_k top_k", lambda f: lambda x: f(x, 3)),
    ("lax", "pmax pmin pmean psum", lambda f: _per_device(lambda x: f(x, "data"))),
    ("lax", "all_gather psum_scatter", lambda f: _per_device(lambda x: f(x.T, "data", tiled=True))),
    ("lax", "broadcast_in_dim", lambda f: lambda x: f(x, (8, 4, 8), (0, 2))),
    ("numpy", "add multiply subtract maximum minimum logaddexp logaddexp2 divmod", lambda f: lambda x, y: f(x, y)),
    ("numpy", "logical_and logical_or logical_xor", lambda f: lambda b, x: f(b, x > 0.5)),
    ("numpy", "bitwise_and bitwise_or bitwise_xor bitwise_left_shift bitwise_right_shift left_shift right_shift gcd lcm",
     lambda f: lambda i, u: f(i, u.astype(i.dtype))),
    ("numpy", "bitwise_count bitwise_invert bitwise_not invert", lambda f: lambda i: f(i)),
    ("numpy", "convolve correlate polyadd polymul polysub", lambda f: lambda v, w: f(v, w)),
    ("numpy", "cumulative_prod cumulative_sum", lambda f: lambda x: f(x, axis=1)),
    ("numpy", "nanpercentile percentile", lambda f: lambda x: f(x, 30.0, axis=0)),
    ("numpy", "nanquantile quantile", lambda f: lambda x: f(x, 0.3, axis=0)),
    ("numpy", "polyder polyint vander", lambda f: lambda v: f(v)),
    ("numpy", "unique unique_all unique_counts unique_inverse unique_values", lambda f: lambda i: f(i, size=8)),
    ("numpy", "argwhere flatnonzero nonzero", lambda f: lambda b: f(b, size=8)),
    ("numpy", "intersect1d setdiff1d setxor1d union1d", lambda f: lambda j, i: f(j, i[0], size=8)),
    ("numpy", "array_split dsplit hsplit split vsplit", lambda f: lambda t: f(t, 2)),
    ("numpy", "block column_stack concat concatenate dstack hstack stack vstack", lambda f: lambda x, y: f([x, y])),
    ("numpy", "bartlett blackman hamming hanning identity eye tri", lambda f: lambda v: v * f(8)),
    ("numpy", "diag_indices tril_indices triu_indices", lambda f: lambda x: x[f(8)]),
    ("numpy", "tril triu flip fliplr flipud rot90 cov array atleast_1d atleast_2d atleast_3d angle negative empty_like",
     lambda f: lambda x: f(x)),
    ("numpy", "top_k", lambda f: lambda x: f(x, 3)),
    ("numpy", "argpartition partition roll repeat", lambda f: lambda x: f(x, 3, axis=1)),
    ("numpy", "full empty ones zeros", lambda f: lambda x: x + f((8, 8), *((2.0,) if f is jnp.full else ()))),
    ("numpy", "geomspace linspace logspace", lambda f: lambda s: f(s, 3.0, 8)),
    ("numpy", "broadcast_arrays meshgrid ix_", lambda f: lambda v, w: f(v, w)),
    ("numpy", "expand_dims rollaxis", lambda f: lambda x: f(x, 1)),
    ("numpy", "reshape resize", lambda f: lambda x: f(x, (4, 16))),
    ("numpy.fft", "fftfreq rfftfreq", lambda f: lambda s: s * f(8)),
    ("nn.initializers", "glorot_normal glorot_uniform he_normal he_uniform kaiming_normal kaiming_uniform lecun_normal "
     "lecun_uniform normal orthogonal truncated_normal uniform xavier_normal xavier_uniform",
     lambda f: lambda key: f()(key, (8, 8))),
    ("nn.initializers", "ones zeros", lambda f: lambda key: f(key, (8, 8))),
    ("nn.initializers", "delta_orthogonal", lambda f: lambda key: f()(key, (3, 3, 8, 8))),
    ("ops", "segment_max segment_min segment_prod segment_sum", lambda f: lambda x, j: f(x, j, 8)),
    ("random", "bits bernoulli cauchy exponential gumbel laplace logistic lognormal maxwell normal rademacher uniform",
     lambda f: lambda key: f(key, shape=(8, 8))),
    ("random", "key PRNGKey", lambda f: lambda n: jax.random.bits(f(n), (8,))),
    ("scipy.linalg", "dft hadamard helmert hilbert invhilbert invpascal pascal", lambda f: lambda s: s * f(8)),
    ("scipy.linalg", "cholesky cho_factor", lambda f: lambda spd: f(spd)),
    ("scipy.linalg", "hankel circulant toeplitz", lambda f: lambda v: f(v)),
    ("scipy.linalg", "companion fiedler fiedler_companion", lambda f: lambda v: f(v)),
    ("scipy.signal", "convolve convolve2d correlate correlate2d fftconvolve", lambda f: lambda x, y: f(x, y)),
    ("scipy.sparse.linalg", "bicgstab cg gmres", lambda f: lambda spd, v: f(spd, v)),
    ("scipy.stats.dirichlet", "logpdf pdf", lambda f: lambda v, w: f(v / v.sum(), w)),
    ("scipy.stats.multinomial", "logpmf pmf", lambda f: lambda j, v: f(j, j.sum(), v / v.sum())),
    ("scipy.stats.multivariate_normal", "logpdf pdf", lambda f: lambda x, v, spd: f(x, v, spd)),
    ("scipy.stats.vonmises", "logpdf pdf", lambda f: lambda x, s: f(x, s)),
]  # fmt: skip

_ONE_EACH: dict[str, Call] = {
    "lax.all_to_all": _per_device(lambda x: lax.all_to_all(x, "data", 1, 0, tiled=True)),
    "lax.associative_scan": lambda x: lax.associative_scan(jnp.add, x),
    "lax.axis_index": _per_device(lambda x: x + lax.axis_index("data")),
    "lax.axis_size": _per_device(lambda x: x * lax.axis_size("data")),
    "lax.bitcast_convert_type": lambda x: lax.bitcast_convert_type(x, "int32"),
    "lax.broadcast": lambda x: lax.broadcast(x, (4,)),
    "lax.broadcast_like": lambda v, x: lax.broadcast_like(v, x),
    "lax.broadcast_to_rank": lambda v: lax.broadcast_to_rank(v, 2),
    "lax.broadcasted_iota": lambda x: x + lax.broadcasted_iota(x.dtype, (8, 8), 1),
    "lax.clamp": lambda s, x, y: lax.clamp(s, x, s + 1) + lax.clamp(x - 1, y, x),
    "lax.collapse": lambda t: lax.collapse(t, 0, 2),
    "lax.composite": lambda x: lax.composite(jnp.tanh, "tests.tanh")(x),
    "lax.concatenate": lambda x, y: lax.concatenate([x, y], 0),
    "lax.cond": lambda n, x: lax.cond(n > 0, jnp.sin, jnp.cos, x),
    "lax.conv": lambda images, kernel: lax.conv(images.transpose(0, 3, 1, 2), kernel.transpose(3, 2, 0, 1), (1, 1), "SAME"),
    "lax.conv_general_dilated": lambda images, kernel: lax.conv_general_dilated(
        images, kernel, (2, 2), "SAME", rhs_dilation=(2, 1), dimension_numbers=_CONV
    ),
    "lax.conv_general_dilated_local": lambda images, x: lax.conv_general_dilated_local(
        images.transpose(0, 3, 1, 2), jnp.ones((8, 36, 6, 6)) * x[0, 0], (1, 1), "VALID", (3, 3)
    ),
    "lax.conv_general_dilated_patches": lambda images: lax.conv_general_dilated_patches(
        images, (2, 2), (2, 2), "VALID", dimension_numbers=_CONV
    ),
    "lax.conv_transpose": lambda images, kernel: lax.conv_transpose(images, kernel, (2, 2), "SAME", dimension_numbers=_CONV),
    "lax.conv_with_general_padding": lambda images, kernel: lax.conv_with_general_padding(
        images.transpose(0, 3, 1, 2), kernel.transpose(3, 2, 0, 1), (1, 1), ((1, 1), (0, 2)), (2, 1), None
    ),
    "lax.convert_element_type": lambda x: lax.convert_element_type(x, "bfloat16"),
    "lax.custom_linear_solve": lambda spd, v: lax.custom_linear_solve(
        lambda u: spd @ u, v, lambda _, r: jnp.linalg.solve(spd, r), symmetric=True
    ),
    "lax.custom_root": lambda s: lax.custom_root(lambda r: r**3 - s, s, lambda f, r: jnp.cbrt(s), lambda g, r: r / g(1.0)),
    "lax.dot_general": lambda t, x: lax.dot_general(t, t, (((2,), (1,)), ((0,), (0,)))),
    "lax.dynamic_index_in_dim": lambda x, n: lax.dynamic_index_in_dim(x, n, 0),
    "lax.dynamic_slice": lambda x, n: lax.dynamic_slice(x, (n, n), (2, 8)),
    "lax.dynamic_slice_in_dim": lambda x, n: lax.dynamic_slice_in_dim(x, n, 3, 1),
    "lax.dynamic_update_index_in_dim": lambda x, v, n: lax.dynamic_update_index_in_dim(x, v, n, 0),
    "lax.dynamic_update_slice": lambda x, y, n: lax.dynamic_update_slice(x, y[:2], (n, n)),
    "lax.dynamic_update_slice_in_dim": lambda x, y, n: lax.dynamic_update_slice_in_dim(x, y[:, :2], n, 1),
    "lax.empty": lambda x: x + 0 * lax.empty((8, 8), x.dtype),
    "lax.expand_dims": lambda x: lax.expand_dims(x, (0, 2)),
    "lax.fft": lambda c: lax.fft(c, "fft", (8,)),
    "lax.fori_loop": lambda x, n: lax.fori_loop(0, n, lambda i, c: jnp.sin(c) + i, x),
    "lax.full": lambda x: x + lax.full((8, 8), 2.0),
    "lax.full_like": lambda x: lax.full_like(x, 2),
    "lax.gather": lambda x, j: lax.gather(x, j[:, None], _ROWS, (1, 8)),
    "lax.index_in_dim": lambda x: lax.index_in_dim(x, 3, 1),
    "lax.index_take": lambda x, j: lax.index_take(x, (j, j), (0, 1)),
    "lax.integer_pow": lambda x: lax.integer_pow(x, 3),
    "lax.iota": lambda v: v + lax.iota(v.dtype, 8),
    "lax.map": lambda x: lax.map(jnp.sin, x),
    "lax.one_minus_square": lambda x: lax.one_minus_square(x),
    "lax.optimization_barrier": lambda x, y: lax.optimization_barrier((x, y)),
    "lax.pad": lambda x, s: lax.pad(x, s, ((1, 2, 0), (0, 0, 1))),
    "lax.pcast": lambda x: jax.shard_map(
        lambda x: lax.pcast(x, "data", to="varying"), mesh=_MESH, in_specs=P(), out_specs=P("data")
    )(x),
    "lax.platform_dependent": lambda x: lax.platform_dependent(x, cpu=jnp.sin, default=jnp.cos),
    "lax.polynomial": lambda x, y: lax.polynomial(x, [y, x, y]),
    "lax.polygamma": lambda s, x: lax.polygamma(jnp.full_like(x, 2.0), x),
    "lax.ppermute": _per_device(lambda x: lax.ppermute(x, "data", [(0, 1), (1, 0)])),
    "lax.pshuffle": _per_device(lambda x: lax.pshuffle(x, "data", [1, 2, 3, 0])),
    "lax.pswapaxes": _per_device(lambda x: lax.pswapaxes(x.reshape(4, -1), "data", 0)),
    "lax.ragged_dot": lambda x, t: lax.ragged_dot(x, t, jnp.array([1, 2, 1, 0, 1, 1, 1, 1])),
    "lax.ragged_dot_general": lambda x, y: lax.ragged_dot_general(
        x, y, jnp.array([3, 5]), lax.RaggedDotDimensionNumbers((((0,), (0,)), ((), ())), [0], [])
    ),
    "lax.random_gamma_grad": lambda x, y: lax.random_gamma_grad(x, y),
    "lax.reduce": lambda x, y: lax.reduce((x, y), (0.0, 0.0), lambda a, b: (a[0] + b[0], a[1] + b[1] + a[0] * b[0]), (1,)),
    "lax.reduce_precision": lambda x: lax.reduce_precision(x, 5, 10),
    "lax.reduce_window": lambda images: lax.reduce_window(images, -np.inf, lax.max, (1, 2, 2, 1), (1, 2, 2, 1), "SAME"),
    "lax.reduce_xor": lambda i: lax.reduce_xor(i, (0,)),
    "lax.reshape": lambda t: lax.reshape(t, (4, 16, 8)),
    "lax.rev": lambda x: lax.rev(x, (0,)),
    "lax.rng_bit_generator": lambda u: lax.rng_bit_generator(u[0, :4], (8, 8)),
    "lax.rng_uniform": lambda s: lax.rng_uniform(s, s + 1, (8, 8)),
    "lax.scan": lambda v, x: lax.scan(lambda c, r: (jnp.tanh(c + r), c * r), v, x),
    "lax.scatter_apply": lambda x, j: lax.scatter_apply(x, j[:, None], jnp.sin, _PLACED, update_shape=(8, 8)),
    "lax.select": lambda b, x, y: lax.select(b, x, y),
    "lax.select_n": lambda i, x, y: lax.select_n(i % 3, x, y, x + y),
    "lax.shape_as_value": lambda x: x[0, :2] + lax.shape_as_value((8, 8)),
    "lax.slice": lambda x: lax.slice(x, (1, 0), (7, 8), (2, 1)),
    "lax.slice_in_dim": lambda x: lax.slice_in_dim(x, 4, 8),
    "lax.sort_key_val": lambda x, y: lax.sort_key_val(x, y),
    "lax.split": lambda x: lax.split(x, (2, 6)),
    "lax.squeeze": lambda x: lax.squeeze(x[:, :1], (1,)),
    "lax.stack": lambda x, y: lax.stack([x, y]),
    "lax.switch": lambda n, x: lax.switch(n, [jnp.sin, jnp.cos, lambda x: x @ x], x),
    "lax.tile": lambda x: lax.tile(x, (2, 3)),
    "lax.transpose": lambda t: lax.transpose(t, (2, 0, 1)),
    "lax.while_loop": lambda x: lax.while_loop(lambda c: jnp.sum(c**2) > 1, lambda c: c / 2, x),
    "lax.with_sharding_constraint": lambda x: lax.with_sharding_constraint(x, jax.sharding.NamedSharding(_MESH, P("data"))),
    "lax.linalg.cholesky": lambda spd: lax.linalg.cholesky(spd),
    "lax.linalg.cholesky_update": lambda spd, v: lax.linalg.cholesky_update(jnp.linalg.cholesky(spd).T, v),
    "lax.linalg.householder_product": lambda x, v: lax.linalg.householder_product(x, v),
    "lax.linalg.lu_pivots_to_permutation": lambda x: lax.linalg.lu_pivots_to_permutation(lax.linalg.lu(x)[1], 8),
    "lax.linalg.ormqr": lambda x, v, y: lax.linalg.ormqr(x, v, y),
    "lax.linalg.symmetric_product": lambda x, y: lax.linalg.symmetric_product(x, y),
    "lax.linalg.triangular_solve": lambda spd, x: lax.linalg.triangular_solve(spd, x, left_side=True, lower=True),
    "lax.linalg.tridiagonal_solve": lambda v, w, x: lax.linalg.tridiagonal_solve(v, w + 3, v, x),
    "numpy.append": lambda x, y: jnp.append(x, y, 0),
    "numpy.apply_along_axis": lambda x: jnp.apply_along_axis(jnp.cumsum, 0, x),
    "numpy.apply_over_axes": lambda t: jnp.apply_over_axes(jnp.sum, t, (0, 2)),
    "numpy.arange": lambda v: v + jnp.arange(8),
    "numpy.astype": lambda x: jnp.astype(x, "int32"),
    "numpy.bincount": lambda j: jnp.bincount(j, length=8),
    "numpy.broadcast_to": lambda v: jnp.broadcast_to(v, (4, 8)),
    "numpy.choose": lambda i, x, y: jnp.choose(i % 2, [x, y], mode="clip"),
    "numpy.clip": lambda x, s: jnp.clip(x, s),
    "numpy.cross": lambda x, y: jnp.cross(x[:, :3], y[:, :3]),
    "numpy.delete": lambda x: jnp.delete(x, 3, 0),
    "numpy.digitize": lambda x, v: jnp.digitize(x, jnp.sort(v)),
    "numpy.einsum": lambda x, y: jnp.einsum("ij,kj->ik", x, y),
    "numpy.extract": lambda b, x: jnp.extract(b, x, size=8),
    "numpy.fill_diagonal": lambda x, s: jnp.fill_diagonal(x, s, inplace=False),
    "numpy.fromfunction": lambda x: x + jnp.fromfunction(jnp.add, (8, 8)),
    "numpy.frompyfunc": lambda x, y: jnp.frompyfunc(lambda a, b: a * b + a, nin=2, nout=1)(x, y),
    "numpy.full_like": lambda x: jnp.full_like(x, 2),
    "numpy.gradient": lambda x: jnp.gradient(x),
    "numpy.histogram2d": lambda v, w: jnp.histogram2d(v, w, 4),
    "numpy.histogramdd": lambda x: jnp.histogramdd(x[:, :2], 4),
    "numpy.indices": lambda x: x + jnp.indices((8, 8)),
    "numpy.insert": lambda x, v: jnp.insert(x, 3, v, axis=0),
    "numpy.interp": lambda x, v, w: jnp.interp(x, jnp.sort(v), w),
    "numpy.kaiser": lambda v: v * jnp.kaiser(8, 2.0),
    "numpy.ldexp": lambda x, i: jnp.ldexp(x, i),
    "numpy.lexsort": lambda v, j: jnp.lexsort((v, j)),
    "numpy.moveaxis": lambda t: jnp.moveaxis(t, 0, 2),
    "numpy.packbits": lambda b: jnp.packbits(b, axis=1),
    "numpy.pad": lambda x: jnp.pad(x, ((1, 2), (0, 8)), mode="wrap"),
    "numpy.permute_dims": lambda t: jnp.permute_dims(t, (2, 0, 1)),
    "numpy.piecewise": lambda x: jnp.piecewise(x, [x < 0.3, x > 0.6], [jnp.sin, jnp.cos, jnp.exp]),
    "numpy.place": lambda x, b, v: jnp.place(x, b, v, inplace=False),
    "numpy.poly": lambda v: jnp.poly(v),
    "numpy.polydiv": lambda v, w: jnp.polydiv(v, w[:3]),
    "numpy.polyfit": lambda v, w: jnp.polyfit(v, w, 2),
    "numpy.polyval": lambda v, x: jnp.polyval(v, x),
    "numpy.put": lambda x, j, v: jnp.put(x, j, v, inplace=False),
    "numpy.put_along_axis": lambda x, i, y: jnp.put_along_axis(x, i, y, 1, inplace=False),
    "numpy.ravel_multi_index": lambda i, j: jnp.ravel_multi_index((i, j), (8, 8), mode="clip"),
    "numpy.roots": lambda v: jnp.roots(v, strip_zeros=False),
    "numpy.searchsorted": lambda v, x: jnp.searchsorted(jnp.sort(v), x),
    "numpy.select": lambda b, x, y: jnp.select([b, x > 0.5], [x, y]),
    "numpy.swapaxes": lambda t: jnp.swapaxes(t, 0, 2),
    "numpy.take": lambda x, j: jnp.take(x, j, 0),
    "numpy.take_along_axis": lambda x, i: jnp.take_along_axis(x, i, 1),
    "numpy.tile": lambda x: jnp.tile(x, (2, 1)),
    "numpy.unpackbits": lambda bytes: jnp.unpackbits(bytes, axis=1),
    "numpy.unravel_index": lambda i: jnp.unravel_index(i, (4, 2)),
    "numpy.vectorize": lambda x, v: jnp.vectorize(jnp.dot, signature="(n),(n)->()")(x, v),
    "numpy.where": lambda b, x, y: jnp.where(b, x, y),
    "numpy.linalg.cholesky": lambda spd: jnp.linalg.cholesky(spd),
    "numpy.linalg.cross": lambda x, y: jnp.linalg.cross(x[:, :3], y[:, :3]),
    "numpy.linalg.eigh": lambda spd: jnp.linalg.eigh(spd),
    "numpy.linalg.matrix_power": lambda x: jnp.linalg.matrix_power(x, 3),
    "numpy.linalg.matrix_rank": lambda x: jnp.linalg.matrix_rank(x),
    "numpy.linalg.multi_dot": lambda x, y, spd: jnp.linalg.multi_dot([x, y, spd]),
    "numpy.linalg.outer": lambda v, w: jnp.linalg.outer(v, w),
    "numpy.linalg.tensorinv": lambda x: jnp.linalg.tensorinv(x.reshape(8, 4, 2), 1),
    "numpy.linalg.tensorsolve": lambda x, v: jnp.linalg.tensorsolve(x.reshape(8, 4, 2), v),
    "nn.dot_product_attention": lambda t: jax.nn.dot_product_attention(*(3 * [t.reshape(4, 8, 8, 2)]), is_causal=True),
    "nn.one_hot": lambda i: jax.nn.one_hot(i, 8),
    "nn.scaled_dot_general": lambda x, y: jax.nn.scaled_dot_general(x, y, (((1,), (0,)), ((), ()))),
    "nn.initializers.constant": lambda key: jax.nn.initializers.constant(2.0)(key, (8, 8)),
    "nn.initializers.variance_scaling": lambda key: jax.nn.initializers.variance_scaling(1.0, "fan_avg", "normal")(key, (8, 8)),
    "random.ball": lambda key: jax.random.ball(key, 3, shape=(8,)),
    "random.categorical": lambda key, x: jax.random.categorical(key, x),
    "random.dirichlet": lambda key, v: jax.random.dirichlet(key, v, (8,)),
    "random.f": lambda key, x, y: jax.random.f(key, x, y),
    "random.fold_in": lambda key, n: jax.random.fold_in(key, n),
    "random.generalized_normal": lambda key: jax.random.generalized_normal(key, 2.0, (8, 8)),
    "random.key_data": lambda n: jax.random.key_data(jax.random.key(n)),
    "random.multinomial": lambda key, v: jax.random.multinomial(key, 10, v / v.sum()),
    "random.multivariate_normal": lambda key, v, spd: jax.random.multivariate_normal(key, v, spd, (4,)),
    "random.orthogonal": lambda key: jax.random.orthogonal(key, 4, (8,)),
    "random.randint": lambda key: jax.random.randint(key, (8, 8), 0, 9),
    "random.triangular": lambda key, x: jax.random.triangular(key, 0.0, x, 2.0),
    "random.truncated_normal": lambda key, x: jax.random.truncated_normal(key, -x, x),
    "random.wald": lambda key, x: jax.random.wald(key, x),
    "random.wrap_key_data": lambda key: jax.random.bits(jax.random.wrap_key_data(key), (8,)),
    "image.resize": lambda images: jax.image.resize(images, (8, 16, 4, 4), "linear"),
    "image.scale_and_translate": lambda images, v: jax.image.scale_and_translate(
        images, (8, 4, 8, 4), (1, 2), v[:2], v[2:4], "linear"
    ),
    "scipy.special.bessel_jn": lambda v: jax.scipy.special.bessel_jn(v, v=3),
    "scipy.special.multigammaln": lambda y: jax.scipy.special.multigammaln(y + 3, 2),
    "scipy.special.sph_harm_y": lambda j, v, w: jax.scipy.special.sph_harm_y(j, j // 2, v, w, n_max=8),
    "scipy.special.wofz": lambda c: jax.scipy.special.wofz(c),
    "scipy.special.zeta": lambda x, y: jax.scipy.special.zeta(x + 1, y),
    "scipy.special.comb": lambda j, i: jax.scipy.special.comb(j, i),
    "scipy.special.owens_t": lambda x, y: jax.scipy.special.owens_t(x, y),
    "scipy.special.poch": lambda x, y: jax.scipy.special.poch(x, y),
    "scipy.linalg.block_diag": lambda x, y: jax.scipy.linalg.block_diag(x, y),
    "scipy.linalg.cho_solve": lambda spd, v: jax.scipy.linalg.cho_solve((jnp.linalg.cholesky(spd), True), v),
    "scipy.linalg.convolution_matrix": lambda v: jax.scipy.linalg.convolution_matrix(v, 8),
    "scipy.linalg.eigh": lambda spd: jax.scipy.linalg.eigh(spd),
    "scipy.linalg.eigh_tridiagonal": lambda v, w: jax.scipy.linalg.eigh_tridiagonal(v, w[1:], eigvals_only=True),
    "scipy.linalg.expm": lambda x: jax.scipy.linalg.expm(x),
    "scipy.linalg.expm_frechet": lambda x, y: jax.scipy.linalg.expm_frechet(x, y),
    "scipy.linalg.funm": lambda x: jax.scipy.linalg.funm(x, jnp.sin),
    "scipy.linalg.leslie": lambda v, w: jax.scipy.linalg.leslie(v, w[1:]),
    "scipy.linalg.lu_solve": lambda x, v: jax.scipy.linalg.lu_solve(jax.scipy.linalg.lu_factor(x), v),
    "scipy.linalg.qr_multiply": lambda x, y: jax.scipy.linalg.qr_multiply(x, y),
    "scipy.linalg.rsf2csf": lambda x: jax.scipy.linalg.rsf2csf(*jax.scipy.linalg.schur(x)),
    "scipy.linalg.solve_sylvester": lambda x, y, spd: jax.scipy.linalg.solve_sylvester(x, y, spd),
    "scipy.linalg.sqrtm": lambda spd: jax.scipy.linalg.sqrtm(spd),
    "scipy.signal.istft": lambda c: jax.scipy.signal.istft(c[:5], nperseg=8),
    "scipy.signal.stft": lambda v: jax.scipy.signal.stft(v, nperseg=4),
    "scipy.signal.welch": lambda v: jax.scipy.signal.welch(v, nperseg=4),
    "scipy.signal.csd": lambda v, w: jax.scipy.signal.csd(v, w, nperseg=4),
    "scipy.ndimage.map_coordinates": lambda x, y: jax.scipy.ndimage.map_coordinates(x, [3 * x, 3 * y], 1),
    "scipy.optimize.minimize": lambda v: jax.scipy.optimize.minimize(lambda r: jnp.sum((r - 1) ** 2), v, method="BFGS").x,
    "scipy.cluster.vq.vq": lambda x, y: jax.scipy.cluster.vq.vq(x, y),
}


def _calls() -> dict[str, Call]:
    found = dict(_ONE_EACH)
    for module, names, call in FAMILIES:
        members = vars(importlib.import_module(f"jax.{module}"))
        for name in names.split():
            if name in members and f"{module}.{name}" not in found:
                found[f"{module}.{name}"] = call(members[name])
    return found


CALLS: Mapping[str, Call] = _calls()
"""By name: a call; the names of its parameters say with which arrays."""
