"""Random layouts as users ask for them: `in_shardings`, `out_shardings`, arguments on the mesh, constraints in the program."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from random import Random
from typing import Any

import jax
import numpy as np
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P
from random_programs import NAMES, RandomProgram

_active = False


def constrain(x: Any, *dims: Any) -> Any:
    """`with_sharding_constraint` inside `constrained()`; elsewhere nothing, so that one device can run the same text."""
    return jax.lax.with_sharding_constraint(x, P(*dims)) if _active else x


NAMES |= {"constrain": constrain, "OPEN": P.UNCONSTRAINED}


@contextmanager
def constrained() -> Iterator[None]:
    """Within, constraints in random programs are constraints."""
    global _active
    _active = True
    try:
        yield
    finally:
        _active = False


@dataclass(frozen=True)
class Asked:
    """A spec, or None for no wish, for each argument and each result leaf. Arguments in `committed` are put on the mesh as
    their spec says and not spoken of in `in_shardings`."""

    arguments: tuple[P | None, ...]
    results: tuple[P | None, ...]
    committed: frozenset[int] = frozenset()

    def in_shardings(self) -> tuple[P | None, ...]:
        return tuple(None if i in self.committed else spec for i, spec in enumerate(self.arguments))

    def placed(self, arguments: Sequence[Any], mesh: jax.sharding.Mesh) -> list[Any]:
        """The arguments, those that are committed on the mesh."""
        return [
            jax.device_put(x, NamedSharding(mesh, self.arguments[i])) if i in self.committed else x
            for i, x in enumerate(arguments)
        ]


def draw_spec(random: Random, shape: Sequence[int], sizes: Mapping[str, int], *, is_open: bool = False) -> P:
    """A spec that divides a shape: each axis on a dim where it fits, or on none; with `is_open`, some dims are open."""
    dims: list[list[str]] = [[] for _ in shape]
    left = list(shape)
    for axis in random.sample(sorted(sizes), len(sizes)):
        fits = [d for d, size in enumerate(left) if size % sizes[axis] == 0 and size]
        if fits and random.random() < 0.7:
            d = random.choice(fits)
            dims[d].append(axis)
            left[d] //= sizes[axis]
    entries = [None if not axes else axes[0] if len(axes) == 1 else tuple(axes) for axes in dims]
    if is_open:
        entries = [P.UNCONSTRAINED if e is None and random.random() < 0.5 else e for e in entries]
    return P(*entries)


def draw_asked(random: Random, program: RandomProgram, sizes: Mapping[str, int]) -> Asked:
    """Wishes for about half of the arguments and results of a program."""

    def wish(shape: Sequence[int]) -> P | None:
        return draw_spec(random, shape, sizes, is_open=random.random() < 0.3) if random.random() < 0.6 else None

    arguments = tuple(wish(x.shape) for x in program.arguments.values())
    results = tuple(wish(x.shape) for x in jax.tree.leaves(jax.eval_shape(program.fun, *program.arguments.values())))
    known = [i for i, spec in enumerate(arguments) if spec is not None and P.UNCONSTRAINED not in tuple(spec)]
    return Asked(arguments, results, frozenset(i for i in known if random.random() < 0.3))


def with_constraints(random: Random, program: RandomProgram, sizes: Mapping[str, int]) -> RandomProgram:
    """The program with constraints on some of the values that it makes."""
    scope: dict[str, Any] = NAMES | {name: jax.numpy.asarray(x) for name, x in program.arguments.items()}
    lines = []
    for text, made in program.lines:
        exec(text, scope)
        for name in sorted(made):
            value = scope[name]
            if isinstance(value, jax.Array | np.ndarray) and value.ndim and random.random() < 0.3:
                spec = draw_spec(random, value.shape, sizes, is_open=random.random() < 0.5)
                said = ", ".join("OPEN" if e is P.UNCONSTRAINED else repr(e) for e in spec)
                text += f"\n{name} = constrain({name}, {said})"
        lines.append((text, made))
    return replace(program, lines=tuple(lines))


def assert_laid(asked: P | None, spec: P, rank: int, name: str) -> None:
    """A spec says what was asked in every dim that was not left open."""
    if asked is None:
        return
    wanted, got = (tuple(s) + (None,) * (rank - len(tuple(s))) for s in (asked, spec))
    named = {axis for e in wanted if e not in (None, P.UNCONSTRAINED) for axis in ([e] if isinstance(e, str) else e)}
    for dim, (want, have) in enumerate(zip(wanted, got, strict=True)):
        if want is P.UNCONSTRAINED:
            assert not named & set([have] if isinstance(have, str) else have or ()), f"{name} dim {dim}: {spec}"
        else:
            assert _axes(want) == _axes(have), f"{name} was asked for as {asked} and lies as {spec}"


def _axes(entry: Any) -> tuple[str, ...]:
    return () if entry is None else (entry,) if isinstance(entry, str) else tuple(entry)
