"""A function with abstract arguments: what every model of the zoo returns, and all that tracing needs."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import numpy.typing as npt


@dataclass(frozen=True)
class Example:
    """A JAX function and the shapes to call it with.

    >>> def scaled_sum(x, scale):
    ...     return (x * scale).sum()
    >>> example = Example(scaled_sum, (jax.ShapeDtypeStruct((8,), "float32"), jax.ShapeDtypeStruct((), "float32")))
    >>> example.name
    'scaled_sum'
    >>> [argument.shape for argument in example.concrete()]
    [(8,), ()]
    """

    fun: Callable[..., Any]
    """The function to partition; it takes `args` by position."""

    args: tuple[Any, ...]
    """Pytrees of `jax.ShapeDtypeStruct`; for a training step `(params, opt_state, batch)`."""

    donate_argnums: tuple[int, ...] = ()
    """Positions of the donated arguments, as for `jax.jit`."""

    name: str = ""
    """The name in reports; by default the function's name."""

    init: Callable[[jax.Array], tuple[Any, ...]] | None = None
    """Makes the leading arguments (parameters, optimizer state) from a PRNG key; `concrete` draws the others at random."""

    integer_bounds: Mapping[str, int] = field(default_factory=dict[str, int])
    """The exclusive upper bound of each integer leaf that is drawn at random, by path: `{"batch/tokens": 1024}`."""

    def __post_init__(self) -> None:
        if not self.name:
            object.__setattr__(self, "name", getattr(self.fun, "__name__", type(self.fun).__name__))

    def concrete(self, seed: int = 0, dtype: npt.DTypeLike | None = None) -> tuple[Any, ...]:
        """Concrete arguments: numpy arrays with the shapes of `args`, always the same for one seed.

        Leading arguments come from `init`, so parameters have the model's own scale. Of the rest, floating-point leaves
        are drawn from a standard normal distribution, integers uniformly from [0, bound), booleans with equal chances.

        Args:
            seed: the seed of the parameters and of the batch.
            dtype: the dtype of every floating-point leaf; `None` keeps the dtypes of `args`.

        Raises:
            ValueError: for an integer leaf without a bound, or a 64-bit `dtype` while JAX is in 32-bit mode.
        """
        floating = None if dtype is None else jnp.dtype(dtype)
        if floating is not None and floating.itemsize > 4 and not jax.config.read("jax_enable_x64"):
            raise ValueError(
                f"cannot make {floating} arguments for {self.name}\n"
                "  why     JAX is in 32-bit mode and would round them to 32 bits without a word\n"
                '  try     jax.config.update("jax_enable_x64", True), or the same in `with jax.enable_x64(True):`'
            )
        made = () if self.init is None else jax.jit(self.init)(jax.random.key(seed))
        self._check_bounds(first=len(made))
        generator = np.random.default_rng(seed)

        def draw(path: str, leaf: jax.ShapeDtypeStruct) -> npt.NDArray[Any]:
            if jnp.issubdtype(leaf.dtype, jnp.integer):
                return generator.integers(self.integer_bounds[path], size=leaf.shape).astype(leaf.dtype)
            if leaf.dtype == np.bool_:
                return generator.integers(2, size=leaf.shape).astype(np.bool_)
            return np.asarray(generator.standard_normal(leaf.shape)).astype(leaf.dtype)

        def cast(leaf: Any) -> npt.NDArray[Any]:
            array = np.asarray(leaf)
            return array if floating is None or not jnp.issubdtype(array.dtype, jnp.floating) else array.astype(floating)

        drawn = [
            _map_with_path(draw, name, argument)
            for name, argument in zip(self._names()[len(made) :], self.args[len(made) :], strict=True)
        ]
        return tuple(jax.tree.map(cast, (*made, *drawn)))

    def _names(self) -> list[str]:
        """The name of each argument: that of the function's parameter."""
        names: list[str] = []
        for parameter in inspect.signature(self.fun).parameters.values():
            if parameter.kind is parameter.VAR_POSITIONAL:
                names += [f"{parameter.name}[{i}]" for i in range(len(self.args) - len(names))]
            elif parameter.kind in (parameter.POSITIONAL_ONLY, parameter.POSITIONAL_OR_KEYWORD):
                names.append(parameter.name)
        return names[: len(self.args)]

    def _check_bounds(self, first: int) -> None:
        """Raise ValueError if an integer leaf of the arguments from `first` on has no upper bound."""
        integers: list[str] = []

        def note(path: str, leaf: jax.ShapeDtypeStruct) -> None:
            if jnp.issubdtype(leaf.dtype, jnp.integer):
                integers.append(path)

        for name, argument in zip(self._names()[first:], self.args[first:], strict=True):
            _map_with_path(note, name, argument)
        if missing := [path for path in integers if path not in self.integer_bounds]:
            raise ValueError(
                f"cannot draw integers for {', '.join(missing)} of {self.name}\n"
                f"  why     integer_bounds has {', '.join(self.integer_bounds) or 'no entries'}\n"
                f"  try     Example(..., integer_bounds={{{missing[0]!r}: <exclusive upper bound>}})"
            )


def _map_with_path(fun: Callable[[str, Any], Any], name: str, argument: Any) -> Any:
    """Apply `fun(path, leaf)` to each leaf; a path is the argument's name and the pytree keys, joined by "/"."""

    def at(keys: tuple[Any, ...], leaf: Any) -> Any:
        return fun("/".join([name, *(jax.tree_util.keystr((key,), simple=True) for key in keys)]), leaf)

    return jax.tree_util.tree_map_with_path(at, argument)
