"""Small JAX programs used by all tests, each with abstract arguments; what is meant to be split divides by 8.

`PROGRAMS[name]` is a `partir.zoo.Example`: `.fun`, `.args`, `.donate_argnums`, `.concrete(seed, dtype)`.
"""

import jax
import jax.numpy as jnp
import numpy as np

from partir.zoo import Example

PROGRAMS: dict[str, Example] = {}


def _shape(*dims, dtype="float32"):
    return jax.ShapeDtypeStruct(dims, dtype)


def _program(*args, donate_argnums=(), **integer_bounds):
    """Put a function into PROGRAMS under its own name."""

    def add(fun):
        PROGRAMS[fun.__name__] = Example(fun, args, donate_argnums, integer_bounds=integer_bounds)
        return fun

    return add


def _causal_softmax(scores):
    mask = jnp.tril(jnp.ones(scores.shape[-2:], bool))
    return jax.nn.softmax(jnp.where(mask, scores, jnp.finfo(scores.dtype).min))


@_program(_shape(16, 8), _shape(8, 32))
def matmul(x, w):
    return x @ w


@_program({"w1": _shape(8, 32), "b1": _shape(32), "w2": _shape(32, 8), "b2": _shape(8)}, _shape(16, 8), _shape(16, 8))
def mlp_grad(params, x, y):
    """Two layers: loss and gradients."""

    def loss(params):
        hidden = jnp.tanh(x @ params["w1"] + params["b1"])
        return jnp.mean((hidden @ params["w2"] + params["b2"] - y) ** 2)

    return jax.value_and_grad(loss)(params)


_PROJECTIONS = {name: _shape(16, 16) for name in ("query", "key", "value", "output")}


@_program(_PROJECTIONS, _shape(8, 8, 16))
def attention(params, x):
    """Causal attention with 8 heads, forward."""
    batch, seq, width = x.shape
    query, key, value = ((x @ params[name]).reshape(batch, seq, 8, 2) for name in ("query", "key", "value"))
    weights = _causal_softmax(jnp.einsum("bqnh,bsnh->bnqs", query, key))
    return jnp.einsum("bnqs,bsnh->bqnh", weights, value).reshape(batch, seq, width) @ params["output"]


@_program(_PROJECTIONS, _shape(8, 8, 16), _shape(8, 8, 16))
def attention_grad(params, x, y):
    """The same with its gradients."""
    return jax.value_and_grad(lambda params: jnp.mean((attention(params, x) - y) ** 2))(params)


def _grouped_attention(params, x, kv_heads, head_dim=2):
    batch, seq, width = x.shape
    query = (x @ params["query"]).reshape(batch, seq, kv_heads, width // head_dim // kv_heads, head_dim)
    key = (x @ params["key"]).reshape(batch, seq, kv_heads, head_dim)
    value = (x @ params["value"]).reshape(batch, seq, kv_heads, head_dim)
    weights = _causal_softmax(jnp.einsum("bqkgh,bskh->bkgqs", query, key))
    mixed = jnp.einsum("bkgqs,bskh->bqkgh", weights, value)
    return mixed.reshape(batch, seq, width) @ params["output"]


@_program(
    {"query": _shape(32, 32), "key": _shape(32, 16), "value": _shape(32, 16), "output": _shape(32, 32)},
    _shape(8, 8, 32),
)
def grouped_attention(params, x):
    """16 query heads on 8 key-value heads."""
    return _grouped_attention(params, x, kv_heads=8)


@_program({"query": _shape(16, 16), "key": _shape(16, 4), "value": _shape(16, 4), "output": _shape(16, 16)}, _shape(8, 8, 16))
def few_kv_heads(params, x):
    """8 query heads on 2 key-value heads, fewer than an axis of 4 or 8 devices."""
    return _grouped_attention(params, x, kv_heads=2)


@_program({name: _shape(24, 24) for name in ("query", "key", "value", "output")}, _shape(8, 8, 24))
def three_heads(params, x):
    """Three heads, which no axis of 2, 4 or 8 divides; the width of 24 divides by all of them."""
    batch, seq, width = x.shape
    query, key, value = ((x @ params[name]).reshape(batch, seq, 3, 8) for name in ("query", "key", "value"))
    weights = _causal_softmax(jnp.einsum("bqnh,bsnh->bnqs", query, key))
    return jnp.einsum("bnqs,bsnh->bqnh", weights, value).reshape(batch, seq, width) @ params["output"]


@_program({"w1": _shape(16, 32), "w2": _shape(32, 16)}, _shape(8, 8, 16))
def merged_rows(params, x):
    """`[B, S, D]` to `[B S, D]` and back around an MLP, with gradients."""

    def loss(params):
        rows = x.reshape(-1, x.shape[-1])
        return jnp.sum((jax.nn.relu(rows @ params["w1"]) @ params["w2"]).reshape(x.shape) * x)

    return jax.grad(loss)(params)


@_program(
    {"embed": _shape(32, 16), "w": _shape(16, 16)},
    _shape(8, 8, dtype="int32"),
    _shape(8, 8, dtype="int32"),
    donate_argnums=(0,),
    tokens=32,
    targets=32,
)
def tied_embedding_step(params, tokens, targets):
    """Look tokens up, make logits with the same table, one step of gradient descent."""

    def loss(params):
        x = jnp.tanh(params["embed"][tokens] @ params["w"])
        log_probabilities = jax.nn.log_softmax(x @ params["embed"].T)
        return -jnp.mean(jnp.sum(jax.nn.one_hot(targets, 32, dtype=x.dtype) * log_probabilities, axis=-1))

    value, gradients = jax.value_and_grad(loss)(params)
    return jax.tree.map(lambda p, g: p - 0.1 * g, params, gradients), value


@_program(_shape(16, 16), _shape(8, 16))
def recurrence(w, x):
    """Three steps of a square matrix: its two dims are one class of dims, which cannot be."""
    h = jnp.zeros_like(x)
    for _ in range(3):
        h = jnp.tanh(h @ w + x)
    return h


@_program({"w1": _shape(8, 32), "w2": _shape(32, 8)}, _shape(16, 8), _shape(16, 8), donate_argnums=(0,))
def clipped_sgd_step(params, x, y):
    """Gradients clipped by their global norm: a non-linear function of all partial sums together."""

    def loss(params):
        return jnp.mean((jnp.tanh(x @ params["w1"]) @ params["w2"] - y) ** 2)

    value, gradients = jax.value_and_grad(loss)(params)
    norm = jnp.sqrt(sum(jnp.sum(g**2) for g in jax.tree.leaves(gradients)))
    scale = jnp.minimum(1.0, 0.01 / norm)
    return jax.tree.map(lambda p, g: p - 0.1 * scale * g, params, gradients), value


@_program({"scale": _shape(16), "offset": _shape(16)}, _shape(8, 16), _shape(8, 16))
def layer_norm_grad(params, x, y):
    """Layer norm over the last dim: loss, gradients of parameters and input."""

    def loss(params, x):
        centred = x - jnp.mean(x, axis=-1, keepdims=True)
        normal = centred * jax.lax.rsqrt(jnp.mean(centred**2, axis=-1, keepdims=True) + 1e-5)
        return jnp.sum((normal * params["scale"] + params["offset"] - y) ** 2)

    return jax.value_and_grad(loss, argnums=(0, 1))(params, x)


@_program(_shape(16, 32), _shape(16, dtype="int32"), labels=32)
def cross_entropy_grad(logits, labels):
    """Softmax cross entropy with `take_along_axis`: a gather forward, a scatter backward."""

    def loss(logits):
        picked = jnp.take_along_axis(jax.nn.log_softmax(logits), labels[:, None], axis=-1)
        return -jnp.mean(picked)

    return jax.value_and_grad(loss)(logits)


_TABLE = np.linspace(-1.0, 1.0, 8 * 16).reshape(8, 16)


@_program(_shape(16, 8))
def closure_and_nested_jit(x):
    """A jitted function called twice within, and an array that is closed over."""

    @jax.jit
    def inner(x):
        return jnp.sin(x) @ _TABLE.astype(x.dtype)

    return inner(x) + inner(2 * x)


@_program(_shape(4, 16, 16), _shape(8, 16))
def scanned_layers(stack, x):
    """Four layers as one scan over stacked weights, with the gradient of the stack."""

    def loss(stack):
        carry, _ = jax.lax.scan(lambda h, w: (jnp.tanh(h @ w), None), x, stack)
        return jnp.sum(carry**2)

    return jax.value_and_grad(loss)(stack)


@_program(_shape(3, 3, 8, 16), _shape(8, 8, 8, 8))
def convolution_grad(kernel, images):
    """A 3x3 convolution of NHWC images: loss, gradients of kernel and images."""

    def loss(kernel, images):
        result = jax.lax.conv_general_dilated(
            images, kernel, window_strides=(1, 1), padding="SAME", dimension_numbers=("NHWC", "HWIO", "NHWC")
        )
        return jnp.sum(jnp.tanh(result))

    return jax.value_and_grad(loss, argnums=(0, 1))(kernel, images)
