"""The programs that plain jit over a sharded mesh is known to get wrong, and every way to shard their arguments.

Rows that do not divide in scatters and segment sums (`t[1:]`), gradients of convolutions with space sharded and an axis of the
mesh unused, gradients of convolutions per example.
"""

import itertools
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.sharding import PartitionSpec as P

Program = tuple[Callable[..., Any], tuple[Any, ...]]
Specs = tuple[P, ...]

PROGRAMS: dict[str, tuple[str, Program]] = {}
"""By name: the family it is counted with, and (function, arguments)."""


def _draw(*shape: int) -> Any:
    """Small whole numbers, so that a sum is the same in any order."""
    return np.random.default_rng([*shape]).integers(-3, 4, shape).astype("float32")


def _rows(bound: int, count: int = 16) -> Any:
    return np.random.default_rng([bound, count]).integers(0, bound, count).astype("int32")


def _program(family: str, name: str, fun: Callable[..., Any], *args: Any) -> None:
    PROGRAMS[name] = family, (fun, args)


def _convolution(images: Any, kernel: Any, strides: tuple[int, int], padding: str) -> Any:
    return lax.conv_general_dilated(images, kernel, strides, padding, dimension_numbers=("NHWC", "HWIO", "NHWC"))


for _count in (8, 10):
    _program("scatter", f"counts[{_count}]", lambda t, n=_count: jnp.zeros(n).at[t[1:]].add(1), _rows(_count))
    _program(
        "scatter",
        f"scatter_add[{_count}]",
        lambda table, i, u: table.at[i[1:]].add(u[1:]),
        *(_draw(_count, 4), _rows(_count), _draw(16, 4)),
    )
    _program(
        "segment_sum",
        f"segment_sum[{_count}]",
        lambda x, i, n=_count: jax.ops.segment_sum(x[:-1], i[:-1], n),
        *(_draw(16, 4), _rows(_count)),
    )
    _program(
        "embedding gradient",
        f"embedding_gradient[{_count}]",
        jax.grad(lambda table, i: (table[i[1:]] ** 2).sum()),
        *(_draw(_count, 4), _rows(_count)),
    )

for _strides, _padding in (((1, 1), "SAME"), ((2, 2), "SAME"), ((2, 1), "VALID")):

    def _loss(images: Any, kernel: Any, strides: Any = _strides, padding: Any = _padding) -> Any:
        return (_convolution(images, kernel, strides, padding) ** 2).sum()

    _suffix = f"[{'x'.join(map(str, _strides))} {_padding}]"
    _images, _kernel = _draw(4, 8, 8, 2), _draw(3, 3, 2, 4)
    _program("convolution, weight gradient", f"weight_gradient{_suffix}", jax.grad(_loss, 1), _images, _kernel)
    _program("convolution, input gradient", f"input_gradient{_suffix}", jax.grad(_loss, 0), _images, _kernel)
    _program(
        "vmap(grad(convolution))",
        f"per_example_gradient{_suffix}",
        jax.vmap(jax.grad(lambda kernel, image, loss=_loss: loss(image[None], kernel)), (None, 0)),
        *(_kernel, _draw(8, 8, 8, 2)),
    )


def specs_of(args: tuple[Any, ...], axes: Mapping[str, int]) -> Iterator[Specs]:
    """Every way to shard one argument along one dim (over any axes, in any order) or along two dims (one axis each), and all
    arguments along their leading dim together, where sizes divide."""
    names = list(axes)
    orders = [order for n in range(1, len(names) + 1) for order in itertools.permutations(names, n)]
    nothing = [P()] * len(args)

    def fits(x: Any, spec: P) -> bool:
        return all(
            size % int(np.prod([axes[axis] for axis in (own if isinstance(own, tuple) else (own,))])) == 0
            for size, own in zip(x.shape, spec, strict=False)
            if own is not None
        )

    for k, x in enumerate(args):
        one = [P(*[None] * d, order) for d in range(x.ndim) for order in orders]
        two = [
            P(*[{d: a, e: b}.get(i) for i in range(max(d, e) + 1)])
            for d, e in itertools.combinations(range(x.ndim), 2)
            for a, b in itertools.permutations(names, 2)
        ]
        yield from ((*nothing[:k], spec, *nothing[k + 1 :]) for spec in one + two if fits(x, spec))
    for axis in names:
        together = tuple(P(axis) if fits(x, P(axis)) else P() for x in args)
        if sum(bool(spec) for spec in together) > 1:
            yield together


def is_wrong(here: Any, there: Any) -> bool:
    """Whether a result is not that of one device: more than 1e-4 of the largest entry off (rounding is far below)."""
    here, there = np.asarray(here), np.asarray(there)
    return not np.allclose(here, there, rtol=1e-4, atol=1e-4 * max(1.0, float(np.max(np.abs(there)))))
