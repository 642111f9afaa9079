"""Programs with the layouts that users ask for: what `docs/why.md` sets side by side, plain jit and partir."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.sharding import PartitionSpec as P


@dataclass(frozen=True)
class Case:
    """A function with its arguments, the mesh (sizes by axis), the specs asked for, and in a sentence what is wanted; `source`
    is where users reported it."""

    title: str
    source: str
    wanted: str
    fun: Callable[..., Any]
    args: tuple[Any, ...]
    mesh: dict[str, int]
    in_specs: tuple[P, ...]
    out_specs: Any = None


def _draw(*shape: int, dtype: str = "float32") -> Any:
    """Small whole numbers: sums of them are the same in any order."""
    return np.random.default_rng([*shape]).integers(-3, 4, shape).astype(dtype)


def _accumulate(w: Any, x: Any) -> Any:
    """Gradients summed over micro-batches."""

    def body(total: Any, part: Any) -> tuple[Any, None]:
        return total + jax.grad(lambda w: jnp.square(part @ w).sum())(w), None

    return lax.scan(body, jnp.zeros_like(w), x.reshape(4, 16, -1))[0]


def _chain(x: Any) -> Any:
    for _ in range(4):
        x = lax.with_sharding_constraint(x * 2, P(None, "d")) + 1
    return x


def _layers(ws: Any, x: Any) -> Any:
    return lax.scan(lambda x, w: (jnp.clip(x @ w, -2, 2), None), x, ws)[0]


def _convolution(images: Any, kernel: Any) -> Any:
    return lax.conv_general_dilated(images, kernel, (1, 1), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC"))


def _train(params: Any, x: Any) -> Any:
    def loss(params: Any) -> Any:
        return jnp.square(jnp.clip(x @ params["a"], -2, 2) @ params["b"]).mean()

    return jax.tree.map(lambda w, g: w - g, params, jax.grad(loss)(params))


def cases() -> list[Case]:
    """The cases; made when asked for, since random keys run a program."""
    return [
        Case(
            "Gradients summed over micro-batches",
            "xla#13306, maxtext#5099",
            "The batch moves once at most, and gradients are summed over devices once, after the loop.",
            _accumulate,
            (_draw(256, 256), _draw(64, 256)),
            {"d": 8},
            (P(), P("d")),
        ),
        Case(
            "A stack of layers, cut along its layers",
            "xla#44794",
            "One layer at a time is sent to all devices, never the whole stack.",
            _layers,
            (_draw(16, 128, 128), _draw(64, 128)),
            {"d": 8},
            (P("d"), P()),
        ),
        Case(
            "Rows written at indices",
            "jax#23052",
            "The owner of a row writes it; nothing moves.",
            lambda table, i, rows: table.at[i].add(rows),
            (_draw(4096, 64), np.arange(16) * 7, _draw(16, 64)),
            {"d": 8},
            (P("d"), P(), P()),
        ),
        Case(
            "The k largest of each row",
            "jax#20683",
            "Rows are independent; nothing moves.",
            jax.vmap(lambda row: lax.top_k(row, 4)),
            (_draw(64, 1024),),
            {"d": 8},
            (P("d"),),
        ),
        Case(
            "Counts of tokens, on a mesh with an axis to spare",
            "found here",
            "The same numbers as on one device.",
            lambda t: jnp.zeros(8).at[t[1:]].add(1),
            (np.arange(16) % 5,),
            {"x": 4, "y": 2},
            (P("x"),),
        ),
        Case(
            "The gradient of a convolution, cut in space",
            "found here",
            "The same numbers as on one device.",
            jax.grad(lambda kernel, images: (_convolution(images, kernel) ** 2).sum()),
            (_draw(3, 3, 4, 8), _draw(8, 16, 16, 4)),
            {"x": 4, "y": 2},
            (P(), P(None, "x")),
        ),
        Case(
            "A gradient per example of a convolution",
            "found here",
            "The same numbers as on one device, and nothing moves.",
            jax.vmap(jax.grad(lambda k, x: (_convolution(x[None], k) ** 2).sum()), (None, 0)),
            (_draw(3, 3, 4, 8), _draw(8, 8, 8, 4)),
            {"x": 4, "y": 2},
            (P(), P(("x", "y"))),
        ),
        Case(
            "A chain of constraints",
            "openpi#193",
            "The value moves once, and stays.",
            _chain,
            (_draw(512, 512),),
            {"d": 8},
            (P("d"),),
        ),
        Case(
            "The first rows of a batch",
            "sglang-jax#1096",
            "16 of 64 rows, over 8 devices before and after; the numbers of rows are no obstacle.",
            lambda x: x[:16] * 2,
            (_draw(64, 256),),
            {"d": 8},
            (P("d"),),
        ),
        Case(
            "Parameters drawn where they will lie",
            "jax#19893",
            "No device ever has them whole.",
            lambda key: {"w": jax.random.normal(key, (512, 512))},
            (jax.random.key(0),),
            {"d": 8},
            (P(),),
            {"w": P("d")},
        ),
        Case(
            "A training step whose parameters and batch are cut over one axis",
            "pytorch/xla#6778",
            "Each layer's parameters are gathered for it and their gradients scattered; activations stay.",
            _train,
            ({"a": _draw(256, 512), "b": _draw(512, 256)}, _draw(2048, 256)),
            {"d": 8},
            (P("d"), P("d")),
            P("d"),
        ),
    ]
