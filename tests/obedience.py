"""Small programs of two arguments, every way to ask for their layouts, and what must hold of each: it is laid as asked, it
computes what one device computes, and the compiled program has the planned collectives, no more."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from equal import assert_same, mesh_of
from hlo import collectives_in
from jax import lax
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P
from random_shardings import assert_laid

import partir
from partir.mesh import Mesh
from partir.setup import Setup


def _array(*shape: int) -> Any:
    return np.random.default_rng(shape).integers(-4, 5, shape).astype("float64") / 4


def _rows(bound: int, count: int) -> Any:
    return np.random.default_rng([bound, count]).integers(0, bound, count)


def _split_in_three(x: Any, w: Any) -> Any:
    q, k, v = jnp.split(x @ w, 3, axis=-1)
    return jnp.tanh(q) * k + v


def _accumulated(w: Any, x: Any) -> Any:
    def body(total: Any, part: Any) -> Any:
        return total + jax.grad(lambda w: jnp.tanh(part @ w).sum())(w), None

    return lax.scan(body, jnp.zeros_like(w), x.reshape(2, 8, 8))[0]


PROGRAMS: dict[str, tuple[Callable[..., Any], Sequence[Any]]] = {
    "sum": (lambda a, b: a * 2 + b, (_array(16), _array(16))),
    "outer": (lambda a, b: jnp.sin(a)[:, None] * b[None], (_array(16), _array(8))),
    "sum, transposed": (lambda a, b: a + b.T, (_array(16, 8), _array(8, 16))),
    "product": (lambda a, b: a @ b, (_array(16, 8), _array(8, 16))),
    "gradient": (jax.grad(lambda w, x: jnp.tanh(x @ w).sum()), (_array(8, 8), _array(16, 8))),
    "batched product": (lambda a, b: jnp.einsum("bij,bjk->bik", a, b), (_array(8, 8, 16), _array(8, 16, 8))),
    "merged dims": (lambda a, w: jnp.tanh(a.reshape(64, 8) @ w).reshape(8, 8, 8), (_array(8, 8, 8), _array(8, 8))),
    "split rows": (lambda a, b: (a.reshape(2, 8, 8) * 2).sum(0) + b[:8], (_array(16, 8), _array(16, 8))),
    "slices": (lambda a, b: jnp.concatenate([a[:8], a[8:] * b[:8]]), (_array(16, 8), _array(16, 8))),
    "three in one": (_split_in_three, (_array(8, 8), _array(8, 24))),
    "accumulated": (_accumulated, (_array(8, 8), _array(16, 8))),
    "scan": (lambda c, xs: lax.scan(lambda c, x: (jnp.tanh(c + x) + c.sum(), None), c, xs)[0], (_array(8, 8), _array(8, 8, 8))),
    "rows": (lambda t, i: t[i] + t.reshape(2, 8, 8).sum((0, 1)), (_array(16, 8), _rows(16, 8))),
    "rows set": (lambda t, i: t.at[i].add(1.5).reshape(2, 8, 8).sum(0), (_array(16, 8), _rows(16, 8))),
}
"""By name: a function and its two arguments."""


def _random(keys: Any, scale: Any) -> Any:
    return jax.vmap(lambda key: jax.random.normal(key, (8,)))(keys) * scale


def program(name: str) -> tuple[Callable[..., Any], Sequence[Any]]:
    """One of NAMES. Keys are made when they are asked for: importing this runs nothing."""
    if name == "keys":
        return _random, (jax.random.split(jax.random.key(0), 16), _array(16, 8))
    return PROGRAMS[name]


NAMES = (*PROGRAMS, "keys")


def specs_of(shape: Sequence[int], sizes: Mapping[str, int]) -> list[P]:
    """Every spec of a shape over axes of these sizes: each axis on one dim or none, several on one dim in each order."""
    found: dict[P, None] = {}
    for order in itertools.permutations(sizes):
        for places in itertools.product(range(-1, len(shape)), repeat=len(order)):
            dims: list[tuple[str, ...]] = [()] * len(shape)
            for axis, place in zip(order, places, strict=True):
                if place >= 0:
                    dims[place] += (axis,)
            if all(n % math.prod(sizes[a] for a in axes) == 0 for n, axes in zip(shape, dims, strict=True)):
                entries: list[Any] = [None if not axes else axes[0] if len(axes) == 1 else axes for axes in dims]
                while entries and entries[-1] is None:
                    entries.pop()
                found[P(*entries)] = None
    return list(found)


@dataclass(frozen=True)
class Ask:
    """Specs for the two arguments and for the result."""

    arguments: tuple[P, P]
    result: P


def asks(name: str, mesh: str) -> Iterator[Ask]:
    """Every pair of specs of the arguments of a program; the specs of its result in turn, so that all of them occur."""
    fun, args = program(name)
    sizes = dict(Mesh.of(mesh_of(mesh)).axes)
    first, second = (specs_of(x.shape, sizes) for x in args)
    result = itertools.cycle(specs_of(jax.eval_shape(fun, *args).shape, sizes))
    for pair in itertools.product(first, second):
        yield Ask(pair, next(result))


def planned(name: str, mesh: str, ask: Ask, traced: dict[str, partir.Traced]) -> partir.Partitioned:
    """The program partitioned as asked; raises where it is not laid so. `traced` keeps what was imported."""
    fun, args = program(name)
    devices = mesh_of(mesh)
    step = partir.jit(fun, mesh=devices, schedule=[], in_shardings=ask.arguments, out_shardings=ask.result)
    known = traced.get(name)
    if known is None:
        known = traced[name] = step.trace(*args)
    setup = Setup(mesh=devices, schedule=[], in_shardings=ask.arguments, out_shardings=ask.result)
    part = partir.Traced(known.program, setup).partition()
    for spec, asked, x, leaf in zip(part.in_specs, ask.arguments, args, known.arguments, strict=True):
        assert_laid(asked, spec, x.ndim, leaf.name)
    assert_laid(ask.result, part.out_specs, len(known.program.signature.results[0].shape), "result")
    return part


def run(name: str, part: partir.Partitioned, ask: Ask, expected: Any) -> None:
    """Call the compiled program with arguments that lie as asked; raises where its result or its collectives are others."""
    _, args = program(name)
    mesh = part.mesh
    laid = [jax.device_put(x, NamedSharding(mesh, spec)) for x, spec in zip(args, ask.arguments, strict=True)]
    compiled = part.lower().compile()
    assert_same(compiled(*laid), expected)
    assert collectives_in(compiled.as_text()) == part.collectives
