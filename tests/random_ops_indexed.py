"""The second half of `random_ops`: rows picked by index, values made of nothing, control flow."""

from __future__ import annotations

import math

from random_ops import OPS, _finer, _op
from random_programs import FLOATS, Growing, Refused, Value

__all__ = ["OPS"]

# ---- dynamic slices, gathers, scatters


@_op(1, smooth=True)
def dynamic_slice(g: Growing) -> None:
    x = g.some()
    sizes = [n if g.chance(0.5) else g.choice([1, max(1, n // 2), g.integer(1, n)]) for n in x.shape]
    starts = ["0" if s == n else g.index((), n, beyond=True).name for s, n in zip(sizes, x.shape, strict=True)]
    g.add(f"lax.dynamic_slice({x.name}, ({''.join(_int32(s) + ', ' for s in starts)}), {tuple(sizes)})", x.unit, x.top)


@_op(1, smooth=True)
def dynamic_update_slice(g: Growing) -> None:
    x = g.some()
    sizes = [n if g.chance(0.5) else g.choice([1, max(1, n // 2), g.integer(1, n)]) for n in x.shape]
    starts = ["0" if s == n else g.index((), n, beyond=True).name for s, n in zip(sizes, x.shape, strict=True)]
    y = g.operand(sizes, x.dtype)
    indices = "".join(_int32(s) + ", " for s in starts)
    g.add(f"lax.dynamic_update_slice({x.name}, {y.name}, ({indices}))", _finer(x, y), max(x.top, y.top))


def _int32(text: str) -> str:
    return f"jnp.int32({text})"


_GET_MODES = ("", "", ".at[{}].get(mode='fill', fill_value=0)", ".at[{}].get(mode='clip')")


@_op(2, smooth=True)
def gather(g: Growing) -> None:
    x = g.some()
    d = g.axis(x)
    mode = g.choice(_GET_MODES) or "[{}]"
    kind = g.choice(["rows", "rows", "pairs", "along", "batched"])
    if kind == "along":
        shape = list(x.shape)
        shape[d] = g.dim()
        i = g.index(shape, x.shape[d])
        g.add(f"jnp.take_along_axis({x.name}, {i.name}, {d})", x.unit, x.top)
        return
    if kind == "batched" and x.rank > 1:
        i = g.index((x.shape[0], g.dim()), x.shape[1])
        g.add(f"jax.vmap(lambda a, i: a[i])({x.name}, {i.name})", x.unit, x.top)
        return
    i = g.index(g.shape(0, 2), x.shape[d], beyond="mode" in mode)
    text = ":, " * d + i.name
    if kind == "pairs" and d + 1 < x.rank:
        text += f", {g.index(i.shape, x.shape[d + 1]).name}"
    g.add(f"{x.name}{mode.format(text)}", x.unit, x.top)


@_op(2, smooth=True)
def scatter(g: Growing) -> None:
    """Updates of rows, or of entries, of a value (or of zeros); some rows named twice where order does not matter."""
    x = g.number()
    d = g.axis(x)
    shape = g.shape(0, 2)
    name = g.choice(["add"] if g.smooth else ["add", "add", "set", "max", "min", "multiply"])
    if name in ("max", "min") and "complex" in x.dtype:
        raise Refused
    if name == "set":  # each row once: which of two would win is not said
        if x.shape[d] > 100:
            raise Refused
        rows = g.permutation(x.shape[d])[: g.dim()]
        index, shape = f"np.array({rows})", (len(rows),)
    else:
        index = g.index(shape, x.shape[d], beyond=True).name
    y = g.operand([*x.shape[:d], *shape, *x.shape[d + 1 :]], x.dtype)
    mode = g.choice(["", "", ", mode='drop'", ", mode='clip'"]) if name != "set" else ""
    base = x.name if g.chance(0.6) else f"jnp.zeros_like({x.name})"
    count = math.prod(shape)
    if name == "multiply":
        if x.is_float and (count > 2 or x.unit is None or y.unit is None):
            raise Refused
        unit, top = (x.unit or 1) * (y.unit or 1) ** count, x.top * y.top ** min(count, 8)
    else:
        unit, top = _finer(x, y), x.top + count * y.top
    g.add(f"{base}.at[{':, ' * d}{index}].{name}({y.name}{mode})", unit, top)


@_op(1, smooth=True)
def segment_sum(g: Growing) -> None:
    x = g.number()
    rows = g.dim()
    i = g.index((x.shape[0],), rows, beyond=True)
    g.add(f"jax.ops.segment_sum({x.name}, {i.name}, {rows})", x.unit, x.top * x.shape[0])


# ---- made of nothing


@_op(1, smooth=True)
def iota(g: Growing) -> None:
    x = g.pick(lambda v: v.rank > 0 and v.dtype in (("float64",) if g.smooth else ("float64", "int32", "int64", "float32")))
    d = g.axis(x)
    text = g.choice(
        [
            f"{x.name} + lax.broadcasted_iota({x.name}.dtype, {x.shape}, {d})",
            f"{x.name} * (lax.broadcasted_iota('int32', {x.shape}, {d}) < {x.shape[d] // 2})",
            f"{x.name} * np.arange({x.size}).reshape({x.shape}).astype({x.name}.dtype) % 7" if not g.smooth and x.exact else "",
        ]
    )
    if not text:
        raise Refused
    g.add(text, x.unit, x.top * (x.size if "%" in text else 1) + x.shape[d])


@_op()
def one_hot(g: Growing) -> None:
    i = g.pick(lambda v: v.rank > 0 and v.is_integer)
    g.add(f"jax.nn.one_hot({i.name}, {g.dim()}, dtype='{g.choice(FLOATS)}', axis={g.choice([-1, 0])})", 1.0, 1.0)


@_op(0.7, smooth=True)
def random_numbers(g: Growing) -> None:
    x = g.pick(lambda v: v.rank > 0 and v.dtype == "float64")
    key = g.argument((2,), "uint32", 0, 9)
    text = g.choice(["jax.random.bernoulli({}, 0.5, {}) * {}", "jax.random.uniform({}, {}) * {}"])
    g.add(text.format(key.name, x.shape, x.name), None, x.top)


# ---- control flow


@_op(1.5, smooth=True)
def scan(g: Growing) -> None:
    """Over the first dim of a value, with a carry: what the body makes is stacked, and kept or summed in the carry."""
    xs = g.pick(lambda v: v.rank > 1 and v.dtype == "float64" and v.shape[0] <= 8)
    start = g.operand(xs.shape[1:] if g.chance(0.5) else g.shape(1, 2), "float64")
    carry = Value(g.fresh(), start.shape, start.dtype, None, start.top + 9)
    x = g.parameter(xs, xs.shape[1:])
    inner = g.body(carry, x)
    inner.grow(g.integer(1, 3), STRAIGHT)
    made = [v for v in inner.values if v not in (carry, x)]
    if not made:
        raise Refused
    last = made[-1]
    new = next((v for v in reversed(made) if (v.shape, v.dtype) == (carry.shape, "float64")), None)
    if new is not None:
        kept = g.choice([f"jnp.tanh({new.name})", f"{carry.name} + jnp.sin({new.name})"])
    else:
        kept = f"{carry.name} + jnp.sin({carry.name})"
    names = [g.fresh() for _ in range(3)]
    text = (
        f"def {names[2]}_body({carry.name}, {x.name}):\n{inner.text()}    return {kept}, {last.name}\n"
        f"{names[0]}, {names[1]} = lax.scan({names[2]}_body, {start.name}, {xs.name}{g.choice(['', ', reverse=True'])})"
    )
    g.line(text, [(names[0], None, carry.top), (names[1], last.unit, last.top)])


@_op()
def summed_scan(g: Growing) -> None:
    """Partial sums in a carry that starts from zero, or from a value."""
    xs = g.pick(lambda v: v.rank == 3 and v.dtype == "float64" and v.shape[0] <= 8)
    w = g.operand((xs.shape[2], g.dim()), "float64")
    start = f"jnp.zeros(({xs.shape[1]}, {w.shape[1]}))"
    if g.chance(0.4):
        start = g.operand((xs.shape[1], w.shape[1]), "float64").name
    name = g.fresh()
    text = f"{name}, _ = lax.scan(lambda c, x: (c + x @ {w.name}, None), {start}, {xs.name})"
    g.line(text, [(name, None, xs.size * xs.top * w.top + 10)])


@_op()
def branches(g: Growing) -> None:
    x = g.number()
    which = g.argument((), "int32", 0, 2)
    text, names, ends = "", [], []
    for _ in range(g.integer(2, 3)):
        own = g.parameter(x)
        inner = g.body(own)
        inner.grow(g.integer(1, 2), STRAIGHT)
        ends.append(next((v for v in reversed(inner.values) if (v.shape, v.dtype) == (x.shape, x.dtype)), own))
        names.append(f"branch_{own.name}")
        text += f"def {names[-1]}({own.name}):\n{inner.text()}    return {ends[-1].name}\n"
    name = g.fresh()
    text += f"{name} = lax.switch({which.name}, [{', '.join(names)}], {x.name})"
    g.line(text, [(name, _finer(*ends), max(v.top for v in ends))])


@_op()
def fixed_loop(g: Growing) -> None:
    x = g.real()
    y = g.operand(x.shape, "float64")
    step = g.choice([f"jnp.tanh(c) + {y.name}", f"jnp.sin(c + i) * {y.name}", f"c / (1 + jnp.sum(c ** 2, 0)) + {y.name}"])
    name = g.fresh()
    g.line(f"{name} = lax.fori_loop(0, {g.integer(1, 3)}, lambda i, c: {step}, {x.name})", [(name, None, x.top + y.top + 2)])


@_op()
def while_loop(g: Growing) -> None:
    """Until an exact number is large enough: how often it runs depends on data."""
    x = g.pick(lambda v: v.rank > 0 and v.exact and v.dtype in ("float64", "int32", "int64") and v.top < 1e4)
    reduced = g.choice(["jnp.max(jnp.abs(c))", "jnp.sum(jnp.abs(c))"])
    name = g.fresh()
    text = f"lax.while_loop(lambda c: {reduced} < 50, lambda c: 2 * jnp.abs(c) + 1, {x.name})"
    g.line(f"{name} = {text}", [(name, min(x.unit or 1, 1.0), max(x.top, 101))])


@_op(0.7, smooth=True)
def vmapped(g: Growing) -> None:
    x = g.pick(lambda v: v.rank > 1 and v.dtype == "float64")
    text = g.choice(
        [
            "jax.vmap(lambda r: r * jnp.sum(r))({})",
            "jax.vmap(lambda r: jnp.cumsum(r, 0), 1, 1)({})",
            "jax.vmap(lambda r: jnp.roll(r, 1, 0), 0, -1)({})",
            "lax.map(lambda r: jnp.sin(r) + jnp.mean(r), {})",
        ]
    ).format(x.name)
    g.add(text, None, max(x.size * x.top**2, 2 * x.top))


@_op(0.5)
def whole_along_a_dim(g: Growing) -> None:
    """Custom calls and transforms: batched, whole along their own dims."""
    x = g.pick(lambda v: v.rank > 1 and v.dtype == "float64" and v.top < 50)
    n = x.shape[-1]
    gram = f"jnp.einsum('...ji,...jk->...ik', {x.name}, {x.name})"
    text, top = g.choice(
        [
            (f"jnp.linalg.cholesky({gram} + 50 * jnp.eye({n}))", x.top * n + 10),
            (f"jnp.linalg.inv({gram} / 1000 + jnp.eye({n}))", 2),
            (f"jnp.fft.rfft({x.name}, axis=-1).real", x.top * n),
            (f"jnp.fft.fft({x.name}, axis=0).imag", x.top * x.shape[0]),
        ]
    )
    g.add(text, None, top)


@_op(0.7, smooth=True)
def constrained(g: Growing) -> None:
    """The user's own wish; an axis that the mesh lacks is left out when it is run."""
    x = g.pick(lambda v: v.rank > 0 and (v.dtype == "float64" or not g.smooth) and v.shape[0] % 8 == 0)
    g.add(f"partir.constrain({x.name}, jax.P('data'))", x.unit, x.top)


STRAIGHT = [op for op in OPS if op.name not in ("scan", "summed_scan", "branches", "fixed_loop", "while_loop")]
"""What a body is grown from: no region stands in another, which would make large programs."""
