"""The ops that random programs are grown from: each takes values that are there and adds a line of JAX.

`smooth` ops have a gradient everywhere that no tie or step makes jump; only those go into programs that are differentiated.
"""

from __future__ import annotations

import math
from collections.abc import Callable

from random_programs import FLOATS, INTEGERS, Growing, Op, Refused, Value

OPS: list[Op] = []


def _op(weight: float = 1.0, *, smooth: bool = False) -> Callable[[Callable[[Growing], None]], Callable[[Growing], None]]:
    def add(grow: Callable[[Growing], None]) -> Callable[[Growing], None]:
        OPS.append(Op(grow.__name__.strip("_"), grow, weight, smooth))
        return grow

    return add


# ---- pointwise


@_op(2, smooth=True)
def function(g: Growing) -> None:
    x = g.real()
    text = g.choice(
        [
            "jnp.tanh({})",
            "jax.nn.sigmoid({})",
            "jnp.exp(-({} ** 2))",
            "jnp.log1p({} ** 2)",
            "jnp.sqrt(1 + {0} * {0})",
            "{0} / (1 + {0} ** 2)",
            "lax.erf({})",
            "jax.nn.gelu(jnp.tanh({}))",
            "lax.rsqrt(2 + jnp.sin({}))",
            "jnp.arctan2({}, 3.0)",
            "lax.reduce_precision({}, 11, 52)",
            "jax.jit(jnp.cos)({})",
        ]
    ).format(x.name)
    g.add(text, None, max(2.0, x.top))


@_op(1.5, smooth=True)
def linear(g: Growing) -> None:
    x = g.number()
    text, grows = g.choice(
        [("-{}", 0), ("{} * 2", 1), ("{} + 1", 1), ("3 - {}", 3), ("{} * {}", 2), ("partir.tag({}, 'here')", 0)]
    )
    top = {0: x.top, 1: 2 * x.top + 1, 2: x.top**2 * (2 if "complex" in x.dtype else 1), 3: x.top + 3}[grows]
    unit = None if x.unit is None else x.unit**2 if grows == 2 else min(x.unit, 1.0)
    g.add(text.format(*[x.name] * 2), unit, top)


@_op()
def stepped(g: Growing) -> None:
    x = g.exact()
    options = ["jnp.abs({})", "jnp.clip({}, 0, 1)", "jnp.maximum({}, 0)", "jax.nn.relu({})", "jnp.sign({})"]
    if x.is_float:
        options += ["jnp.floor({})", "jnp.round({})", "lax.ceil({})"]
    g.add(g.choice(options).format(x.name), min(x.unit or 1, 1.0), x.top + 1)


@_op()
def bits(g: Growing) -> None:
    x = g.pick(lambda v: v.rank > 0 and (v.is_integer or v.dtype == "bool"))
    y = g.operand(x.shape, x.dtype)
    options = ["{} & {}", "{} | {}", "{} ^ {}", "~{}"]
    if x.is_integer:
        options += ["lax.population_count({})", "{} // 3", "lax.rem({}, jnp.full_like({}, 5))", "{} << 1", "lax.clz({})"]
    g.add(g.choice(options).format(x.name, y.name), 1.0, 2.0**64)


@_op(2, smooth=True)
def pointwise(g: Growing) -> None:
    x = g.number()
    y = g.operand(_broadcastable(g, x), x.dtype)
    kind = g.choice("+-*")
    unit = None if x.unit is None or y.unit is None else x.unit * y.unit if kind == "*" else min(x.unit, y.unit)
    top = (x.top * y.top if kind == "*" else x.top + y.top) * (2 if "complex" in x.dtype else 1)
    g.add(f"{x.name} {kind} {y.name}", unit, top)


def _broadcastable(g: Growing, x: Value) -> tuple[int, ...]:
    """The shape of `x`, or one that broadcasts to it."""
    if g.chance(0.6):
        return x.shape
    shape = x.shape[g.integer(0, x.rank - 1) :]
    return tuple(1 if g.chance(0.3) else d for d in shape)


@_op()
def extremum(g: Growing) -> None:
    x = g.pick(lambda v: v.rank > 0 and (v.is_float or v.is_integer))
    y = g.operand(_broadcastable(g, x), x.dtype)
    g.add(f"jnp.{g.choice(['maximum', 'minimum'])}({x.name}, {y.name})", _finer(x, y), max(x.top, y.top))


def _finer(*values: Value) -> float | None:
    units = [v.unit for v in values]
    return None if None in units else min(u for u in units if u is not None)


@_op()
def compare(g: Growing) -> None:
    x = g.exact()
    y = g.pick(lambda v: v.dtype == x.dtype and v.exact and v.shape == x.shape)
    g.add(f"{x.name} {g.choice(['<', '<=', '==', '!=', '>'])} {y.name}")


@_op(1.5, smooth=True)
def where(g: Growing) -> None:
    x = g.some()
    y = g.operand(x.shape, x.dtype)
    masks = [v for v in g.visible if v.dtype == "bool" and v.shape == x.shape]
    mask = g.choice(masks) if masks and g.chance(0.6) else g.argument(x.shape if g.chance(0.7) else x.shape[-1:], "bool")
    other = y.name if g.chance(0.6) else "0"
    g.add(f"jnp.where({mask.name}, {x.name}, {other})", _finer(x, y) if other != "0" else x.unit, max(x.top, y.top))


@_op()
def convert(g: Growing) -> None:
    x = g.some()
    if x.dtype == "float64" and not x.exact:
        g.add(f"{x.name}.astype('complex128')", None, x.top)
        return
    dtype = g.choice([d for d in (*FLOATS, *INTEGERS, "bool", "complex128") if d != x.dtype])
    if "complex" in x.dtype or not x.exact or (x.is_float and "int" in dtype and (dtype[0] == "u" or x.top > 100)):
        raise Refused
    g.add(f"{x.name}.astype('{dtype}')", min(x.unit or 1, 1.0), x.top)


@_op(0.7)
def complex_numbers(g: Growing) -> None:
    x = g.pick(lambda v: v.rank > 0 and v.dtype in ("complex128", "float64"))
    if x.dtype == "float64":
        y = g.operand(x.shape, "float64")
        g.add(f"lax.complex({x.name}, {y.name})", _finer(x, y), x.top + y.top)
    else:
        g.add(g.choice(["jnp.conj({})", "{}.real", "{}.imag", "{} * 1j"]).format(x.name), x.unit, x.top)


# ---- contractions


@_op(3, smooth=True)
def einsum(g: Growing) -> None:
    """Each dim of the left operand is contracted, batched or free; the right one has dims of its own."""
    x = g.number()
    letters = "abcd"[: x.rank]
    kinds = {c: g.choice(["contracted", "contracted", "batch", "free"]) for c in letters}
    sizes = dict(zip(letters, x.shape, strict=True))
    shared = [c for c in letters if kinds[c] != "free"]
    own = list("xy"[: g.integer(0, 2)])
    sizes |= {c: g.dim() for c in own}
    right = [(shared + own)[i] for i in g.permutation(len(shared) + len(own))]
    if not right:
        raise Refused
    y = g.operand([sizes[c] for c in right], x.dtype)
    kept = [c for c in letters if kinds[c] != "contracted"] + own
    result = [kept[i] for i in g.permutation(len(kept))]
    count = math.prod(sizes[c] for c in letters if kinds[c] == "contracted") * (2 if "complex" in x.dtype else 1)
    unit = None if x.unit is None or y.unit is None else x.unit * y.unit
    expression = f"{letters},{''.join(right)}->{''.join(result)}"
    g.add(f"jnp.einsum('{expression}', {x.name}, {y.name})", unit, count * x.top * y.top)


@_op(0.5, smooth=True)
def gram(g: Growing) -> None:
    """A value contracted with itself: one dim wants to be two."""
    x = g.pick(lambda v: v.rank >= 2 and (v.dtype == "float64" or (not g.smooth and v.is_float)))
    text, count = g.choice([("...ij,...kj->...ik", x.shape[-1]), ("...ji,...jk->...ik", x.shape[-2])])
    g.add(f"jnp.einsum('{text}', {x.name}, {x.name})", None if x.unit is None else x.unit**2, count * x.top**2)


@_op(1, smooth=True)
def convolution(g: Growing) -> None:
    """One or two spatial dims; strides, dilations, padding, groups."""
    spatial = g.integer(1, 2)
    groups = g.choice([1, 1, 1, 2, 4, 8])
    inputs, outputs = groups * g.choice([1, 2, 4]), groups * g.choice([1, 2, 4])
    window = [g.integer(1, 3) for _ in range(spatial)]
    sizes = [g.choice([4, 8, 5]) for _ in range(spatial)]
    dtype = "float64" if g.smooth else g.choice(["float64", "float64", "float32"])
    x = g.operand([g.choice([2, 4, 8]), *sizes, inputs], dtype)
    k = g.operand([*window, inputs // groups, outputs], dtype)
    letters = "HW"[:spatial]
    settings = {
        "window_strides": [g.choice([1, 1, 2]) for _ in range(spatial)],
        "padding": g.choice(["SAME", "VALID", [(g.integer(0, 2), g.integer(0, 2)) for _ in range(spatial)]]),
        "lhs_dilation": [g.choice([1, 1, 1, 2]) for _ in range(spatial)],
        "rhs_dilation": [g.choice([1, 1, 1, 2]) for _ in range(spatial)],
    }
    if settings["lhs_dilation"] != [1] * spatial:  # JAX takes no words there
        settings["padding"] = [(1, 1)] * spatial
    if any(n < (w - 1) * d + 1 for n, w, d in zip(sizes, window, settings["rhs_dilation"], strict=True)):
        raise Refused
    text = ", ".join(f"{name}={value!r}" for name, value in settings.items())
    unit = None if x.unit is None or k.unit is None else x.unit * k.unit
    g.add(
        f"lax.conv_general_dilated({x.name}, {k.name}, {text}, feature_group_count={groups}, "
        f"dimension_numbers=('N{letters}C', '{letters}IO', 'N{letters}C'))",
        unit,
        math.prod(window) * inputs // groups * x.top * k.top,
    )


# ---- reductions, running reductions, windows


@_op(2, smooth=True)
def total(g: Growing) -> None:
    x = g.number()
    axes = tuple(d for d in range(x.rank) if g.chance(0.5)) or (g.axis(x),)
    count = math.prod(x.shape[d] for d in axes)
    keep = g.choice(["", "", ", keepdims=True"])
    if x.dtype == "float64" and g.chance(0.4):
        name = g.choice(["mean", "var"])
        g.add(f"jnp.{name}({x.name}, axis={axes}{keep})", None, x.top if name == "mean" else 2 * x.top**2)
    else:
        g.add(f"jnp.sum({x.name}, axis={axes}{keep})", x.unit, count * x.top)


@_op(1.5)
def reduction(g: Growing) -> None:
    x = g.pick(lambda v: v.rank > 0 and (v.exact or v.is_float) and "complex" not in v.dtype)
    axes = tuple(d for d in range(x.rank) if g.chance(0.5)) or (g.axis(x),)
    count = math.prod(x.shape[d] for d in axes)
    small = count * math.log10(max(x.top, 2)) <= 4
    options = ["any", "all"] if x.dtype == "bool" else ["max", "min"] + (["prod"] if small or x.is_integer else [])
    if x.dtype != "bool" and x.exact:
        options += ["count_nonzero"]
    name = g.choice(options)
    if name == "prod":
        unit = None if x.unit is None else x.unit**count
        g.add(f"jnp.prod({x.name}, axis={axes})", unit, x.top**count if small else 2.0**64)
    else:
        g.add(f"jnp.{name}({x.name}, axis={axes})", x.unit, max(x.top, count))


@_op()
def reduction_from(g: Growing) -> None:
    """From a value that is not neutral; over one element XLA on one device (0.10.2 and 0.12) forgets it."""
    x = g.exact()
    dim = g.choice([d for d, n in enumerate(x.shape) if n > 1])
    name, start = g.choice([("add", 3), ("max", 1), ("min", -1 if x.dtype[0] != "u" else 1)])
    unit, top = min(x.unit or 1, 1.0), x.top * x.shape[dim] + 3
    g.add(f"lax.reduce({x.name}, np.array({start}, {x.name}.dtype), lax.{name}, [{dim}])", unit, top)


@_op()
def reduction_of_bits(g: Growing) -> None:
    x = g.pick(lambda v: v.rank > 0 and v.is_integer)
    g.add(f"lax.reduce_{g.choice(['and', 'or', 'xor'])}({x.name}, [{g.axis(x)}])", 1.0, 2.0**64)


@_op()
def arg_extremum(g: Growing) -> None:
    x = g.exact()
    g.add(f"jnp.{g.choice(['argmax', 'argmin'])}({x.name}, axis={g.axis(x)})", 1.0, max(x.shape))


@_op(1, smooth=True)
def softmax(g: Growing) -> None:
    x = g.pick(lambda v: v.rank > 0 and v.dtype == "float64" and v.top < 100)
    name = g.choice(["softmax", "log_softmax", "logsumexp", "standardize"])
    g.add(f"jax.nn.{name}({x.name}, axis={g.axis(x)}{', epsilon=0.1' if name == 'standardize' else ''})", None, 2 * x.top + 10)


@_op(1, smooth=True)
def running(g: Growing) -> None:
    x = g.number()
    dim = g.axis(x)
    reverse = g.choice(["", ", reverse=True"])
    if x.dtype == "float64" and x.top < 100 and g.chance(0.2):
        g.add(f"lax.cumlogsumexp({x.name}, {dim}{reverse})", None, x.top + 10)
    elif not g.smooth and "complex" not in x.dtype and g.chance(0.4):
        g.add(f"lax.{g.choice(['cummax', 'cummin'])}({x.name}, {dim}{reverse})", x.unit, x.top)
    else:
        g.add(f"lax.cumsum({x.name}, {dim}{reverse})", x.unit, x.top * x.shape[dim])


@_op()
def window(g: Growing) -> None:
    x = g.pick(lambda v: v.rank > 0 and v.is_float)
    window = [g.choice([1, 2, 3]) if n >= 3 else 1 for n in x.shape]
    strides = [g.choice([1, 2]) for _ in x.shape]
    name, start = g.choice([("add", "0"), ("max", "-np.inf"), ("min", "np.inf")])
    text = f"np.array({start}, {x.name}.dtype), lax.{name}, {window}, {strides}, '{g.choice(['VALID', 'SAME'])}'"
    g.add(f"lax.reduce_window({x.name}, {text})", x.unit, x.top * (math.prod(window) if name == "add" else 1))


@_op()
def sort(g: Growing) -> None:
    x = g.number()
    if "complex" in x.dtype:
        raise Refused
    dim = g.axis(x)
    if not x.exact:
        g.add(f"jnp.sort({x.name}, axis={dim})", None, x.top)
    elif g.chance(0.4):
        g.add(
            f"jnp.{g.choice(['sort', 'argsort'])}({x.name}, axis={dim}, descending={g.chance(0.5)})",
            x.unit,
            max(x.top, max(x.shape)),
        )
    else:
        y, (a, b) = g.operand(x.shape, g.choice(FLOATS)), (g.fresh(), g.fresh())
        text = f"{a}, {b} = lax.sort(({x.name}, {y.name}), dimension={dim}, num_keys=1)"
        g.line(text, [(a, x.unit, x.top), (b, y.unit, y.top)])


@_op()
def top_k(g: Growing) -> None:
    x = g.exact()
    a, b = g.fresh(), g.fresh()
    text = f"{a}, {b} = lax.top_k({x.name}, {g.integer(1, x.shape[-1])})"
    g.line(text, [(a, x.unit, x.top), (b, 1.0, x.shape[-1])])


# ---- shapes


@_op(2, smooth=True)
def reshape(g: Growing) -> None:
    x = g.some()
    primes: list[int] = []
    rest = x.size
    for p in (2, 3, 5, 7, 11, 13):
        while rest % p == 0:
            rest //= p
            primes.append(p)
    if x.rank > 1 and g.chance(0.5):  # neighbours merge
        d = g.integer(0, x.rank - 2)
        shape = [*x.shape[:d], x.shape[d] * x.shape[d + 1], *x.shape[d + 2 :]]
    elif g.chance(0.6):  # a dim splits
        d = g.axis(x)
        major = g.choice([n for n in range(1, x.shape[d] + 1) if x.shape[d] % n == 0])
        shape = [*x.shape[:d], major, x.shape[d] // major, *x.shape[d + 1 :]]
    else:  # anything
        shape = [rest] + [1] * g.integer(0, 2)
        for p in primes:
            shape[g.integer(0, len(shape) - 1)] *= p
    g.add(f"{x.name}.reshape({tuple(shape)})", x.unit, x.top)


@_op(1.5, smooth=True)
def transpose(g: Growing) -> None:
    x = g.pick(lambda v: v.rank > 1 and (v.dtype == "float64" or not g.smooth))
    g.add(f"{x.name}.transpose({tuple(g.permutation(x.rank))})", x.unit, x.top)


@_op(1, smooth=True)
def broadcast(g: Growing) -> None:
    x = g.some()
    d = g.integer(0, x.rank)
    shape = [*x.shape[:d], g.dim(), *x.shape[d:]]
    g.add(f"jnp.broadcast_to(jnp.expand_dims({x.name}, {d}), {tuple(shape)})", x.unit, x.top)


@_op(1, smooth=True)
def moved(g: Growing) -> None:
    x = g.some()
    d = g.axis(x)
    text = g.choice(
        [
            f"jnp.flip({x.name}, {d})",
            f"jnp.roll({x.name}, {g.integer(-3, 3)}, {d})",
            f"jnp.repeat({x.name}, 2, {d})",
            f"jnp.concatenate([{x.name}] * 2, {d})",
        ]
    )
    g.add(text, x.unit, x.top)


@_op(2, smooth=True)
def slice_(g: Growing) -> None:
    x = g.some()
    parts = []
    for n in x.shape:
        start, stop, stride = 0, n, 1
        if n > 1 and g.chance(0.5):
            blocks = g.choice([b for b in (2, 3, 4, 8) if n % b == 0] or [1])
            start = g.integer(0, blocks - 1) * (n // blocks) if g.chance(0.5) else g.integer(0, n - 1)
            stop = min(n, start + n // blocks) if g.chance(0.6) else g.integer(start + 1, n)
            stride = g.choice([1, 1, 2, 3])
        parts.append(str(start) if stop - start == 1 and g.chance(0.3) else f"{start}:{stop}:{stride}")
    g.add(f"{x.name}[{', '.join(parts)}]", x.unit, x.top)


@_op(1.5, smooth=True)
def pad(g: Growing) -> None:
    x = g.some()
    edges = []
    for n in x.shape:
        kind = g.choice(["none", "none", "blocks", "any"])
        low, high, inner = (0, 0, 0) if kind == "none" else (g.integer(0, 2) * n, g.integer(0, 2) * n, 0)
        if kind == "any":
            low, high, inner = g.integer(-1, 3), g.integer(-1, 3), g.integer(0, 1)
        edges.append((low, high, inner))
    if any(n + low + high + max(0, n - 1) * inner < 1 for n, (low, high, inner) in zip(x.shape, edges, strict=True)):
        raise Refused
    value = g.choice([0, 0, 1])
    g.add(f"lax.pad({x.name}, np.array({value}, {x.name}.dtype), {edges})", min(x.unit, 1.0) if x.unit else None, max(x.top, 1))


@_op(1.5, smooth=True)
def concatenate(g: Growing) -> None:
    x = g.some()
    d = g.axis(x)
    shape = list(x.shape)
    if g.chance(0.4):
        shape[d] = g.dim()
    y = g.operand(shape, x.dtype)
    stacked = shape == list(x.shape) and g.chance(0.3)
    g.add(f"jnp.{'stack' if stacked else 'concatenate'}([{x.name}, {y.name}], {d})", _finer(x, y), max(x.top, y.top))
