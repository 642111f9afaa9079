"""Random JAX programs as source text, with arguments whose numbers do not depend on the order of sums, or not by much.

A program is grown line by line: an op of `random_ops.OPS` takes values that are there (or asks for a new argument) and adds a
line that makes more. Of each value we know the shape and dtype, and how exact it is. *Exact* values are multiples of `unit`,
at most `top` large, and few enough bits for their dtype: sums of them are the same in any order, so they may be compared,
sorted and rounded, and every dtype may have them. All others are float64 or complex128, agree to rounding, and only go into
functions that are continuous and well-conditioned. `program.source` is a function to paste into a bug report.
"""

from __future__ import annotations

import math
import re
import textwrap
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from random import Random
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

import partir

NAMES = {"jax": jax, "jnp": jnp, "lax": lax, "np": np, "partir": partir}
"""What the text of a program may speak of."""

BITS = {"float64": 53, "float32": 24, "float16": 11, "bfloat16": 8, "complex128": 53, "complex64": 24}
"""Of the significand: integers up to 2 ** bits are exact."""

TOP = {"float16": 2.0**15}
"""The largest magnitude we let a dtype have; 1e4 for what is not named, beyond which rounding would show."""

DIMS = (8, 8, 8, 8, 8, 16, 16, 4, 4, 2, 2, 24, 12, 6, 3, 5, 1, 10)
ELEMENTS = 2048
RANK = 4
FLOATS = ("float64", "float64", "float64", "float32", "bfloat16", "float16")
INTEGERS = ("int32", "int32", "int64", "int8", "uint8", "uint32", "int16")


class Refused(Exception):
    """An op that cannot be had with what is there: another is drawn."""


@dataclass(frozen=True)
class Value:
    """One value of the program: `unit` is None where it is only known up to rounding, `top` bounds its magnitude."""

    name: str
    shape: tuple[int, ...]
    dtype: str
    unit: float | None
    top: float

    @property
    def rank(self) -> int:
        return len(self.shape)

    @property
    def size(self) -> int:
        return math.prod(self.shape)

    @property
    def exact(self) -> bool:
        return self.unit is not None

    @property
    def is_float(self) -> bool:
        return self.dtype in ("float64", "float32", "float16", "bfloat16")

    @property
    def is_integer(self) -> bool:
        return "int" in self.dtype

    @property
    def struct(self) -> jax.ShapeDtypeStruct:
        return jax.ShapeDtypeStruct(self.shape, self.dtype)


Line = tuple[str, frozenset[str]]
"""A statement, and the names it makes."""


@dataclass(frozen=True, eq=False)
class RandomProgram:
    """A program as text, and its arguments; `source` defines `program`, which returns a list."""

    arguments: dict[str, np.ndarray]
    lines: tuple[Line, ...]
    results: tuple[str, ...]
    ops: tuple[str, ...] = ()
    """The names of the ops it was grown from."""

    gradient: str = ""
    """How it is differentiated, if it is: `loss`, or `jax.checkpoint(loss)`."""

    @cached_property
    def source(self) -> str:
        names, results = ", ".join(self.arguments), ", ".join(self.results)
        if not self.gradient:
            return f"def program({names}):\n{block(self.lines, 4)}    return [{results}]\n"
        wanted = tuple(i for i, x in enumerate(self.arguments.values()) if x.dtype == np.float64)
        return (
            f"def program({names}):\n"
            f"    def loss({names}):\n{block(self.lines, 8)}"
            f"        return sum(jnp.sum(jnp.sin(r)) for r in [{results}])\n"
            f"    return list(jax.value_and_grad({self.gradient}, {wanted})({names}))\n"
        )

    @cached_property
    def fun(self) -> Callable[..., Any]:
        scope = dict(NAMES)
        exec(self.source, scope)
        return scope["program"]

    def __repr__(self) -> str:
        shapes = ", ".join(f"{name}: {x.dtype}{list(x.shape)}" for name, x in self.arguments.items())
        return f"{self.source}# {shapes}"


def block(lines: Sequence[Line], indent: int) -> str:
    """Lines as indented text."""
    return "".join(textwrap.indent(line, " " * indent) + "\n" for line, _ in lines)


def read_by(lines: Sequence[Line]) -> set[str]:
    """The names that lines read from before them."""
    return set().union(*(set(re.findall(r"\bv\d+\b", line)) - made for line, made in lines))


@dataclass
class Growing:
    """A program (or the body of a loop or branch in it) that is being grown. Ops see this."""

    random: Random
    smooth: bool = False
    """Only ops that have a gradient everywhere, of float64: the program will be differentiated."""

    values: list[Value] = field(default_factory=list)
    lines: list[Line] = field(default_factory=list)
    ops: list[str] = field(default_factory=list)
    arguments: list[Value] = field(default_factory=list)
    arrays: dict[str, np.ndarray] = field(default_factory=dict)
    outer: Growing | None = None
    count: int = 0
    """How many names were given; kept by the outermost."""

    @property
    def root(self) -> Growing:
        return self if self.outer is None else self.outer.root

    def fresh(self) -> str:
        self.root.count += 1
        return f"v{self.root.count}"

    # ---- drawing

    def chance(self, probability: float) -> bool:
        return self.random.random() < probability

    def choice(self, options: Sequence[Any]) -> Any:
        if not options:
            raise Refused
        return options[self.random.randrange(len(options))]

    def integer(self, low: int, high: int) -> int:
        """From low to high, both included."""
        return self.random.randint(low, high)

    def dim(self) -> int:
        return self.choice(DIMS)

    def shape(self, low: int = 1, high: int = 3) -> tuple[int, ...]:
        shape = tuple(self.dim() for _ in range(self.integer(low, high)))
        return shape if math.prod(shape) <= ELEMENTS else shape[:2]

    def axis(self, value: Value) -> int:
        return self.choice(range(value.rank))

    def permutation(self, count: int) -> list[int]:
        order = list(range(count))
        self.random.shuffle(order)
        return order

    # ---- what ops take

    @property
    def visible(self) -> list[Value]:
        return [*(self.outer.visible if self.outer else self.arguments), *self.values]

    def pick(self, fits: Callable[[Value], bool]) -> Value:
        """A value for which `fits` holds, rather a late one; Refused if there is none."""
        found = [v for v in self.visible if fits(v)]
        if not found:
            raise Refused
        return found[max(self.random.randrange(len(found)) for _ in range(2))]

    def argument(self, shape: Sequence[int], dtype: str, low: int = -4, high: int = 4) -> Value:
        """A new argument: integers from low to high, quarters of them where it is a float. Refused where it is too large."""
        if self.outer is not None:
            return self.outer.argument(shape, dtype, low, high)
        if len(shape) > RANK or math.prod(shape) > ELEMENTS:
            raise Refused
        rng = np.random.default_rng(self.random.getrandbits(32))
        low = max(low, 0) if dtype[0] == "u" or dtype == "bool" else low
        high = 1 if dtype == "bool" else high
        unit = 0.25 if dtype in BITS else 1.0
        numbers = rng.integers(low, high, tuple(shape), endpoint=True) * unit
        if "complex" in dtype:
            numbers = numbers + 1j * rng.integers(low, high, tuple(shape), endpoint=True) * unit
        value = Value(self.fresh(), tuple(shape), dtype, unit, max(-low, high) * unit * (2 if "complex" in dtype else 1))
        self.arguments.append(value)
        self.arrays[value.name] = np.asarray(numbers).astype(jnp.dtype(dtype))
        return value

    def operand(self, shape: Sequence[int], dtype: str) -> Value:
        """A value of this shape and dtype: one that is there, or a new argument."""
        found = [v for v in self.visible if v.shape == tuple(shape) and v.dtype == dtype]
        return self.choice(found) if found and self.chance(0.7) else self.argument(shape, dtype)

    def some(self) -> Value:
        """A value of any dtype, of at least one dim; float64 where the program is to be differentiated."""
        return self.pick(lambda v: v.rank > 0 and (v.dtype == "float64" or not self.smooth))

    def number(self) -> Value:
        """The same, but no bool."""
        return self.pick(lambda v: v.rank > 0 and (v.dtype == "float64" or not self.smooth) and v.dtype != "bool")

    def exact(self) -> Value:
        """A real number that is exact, of at least one dim."""
        return self.pick(lambda v: v.rank > 0 and v.exact and (v.is_float or v.is_integer) and not self.smooth)

    def real(self) -> Value:
        """A float64 of at least one dim: what any function may be applied to."""
        return self.pick(lambda v: v.rank > 0 and v.dtype == "float64")

    def index(self, shape: Sequence[int], rows: int, *, beyond: bool = False) -> Value:
        """An argument of row numbers from 0 to rows - 1, or some out of range."""
        dtype = self.choice(("int32", "int32", "int32", "int64", "uint8"))
        low, high = (-rows - 2, rows + 3) if beyond else (0, rows - 1)
        return self.argument(shape, dtype, low, high)

    # ---- what ops make

    def add(self, text: str, unit: float | None = None, top: float = 1.0) -> Value:
        """A line that assigns `text` to a new value, of which `unit` and `top` are known."""
        name = self.fresh()
        return self.line(f"{name} = {text}", [(name, unit, top)])[0]

    def line(self, text: str, made: Sequence[tuple[str, float | None, float]]) -> list[Value]:
        """A statement that makes the values (name, unit, top). Refused where one is too large, or not exact enough."""

        def run(known: dict[str, Any]) -> list[Any]:
            scope = NAMES | known
            exec(text, scope)
            return [scope[name] for name, _, _ in made]

        shapes = jax.eval_shape(run, {v.name: v.struct for v in self.visible})
        found = [_value(name, s, unit, top) for (name, unit, top), s in zip(made, shapes, strict=True)]
        if any(v.size > ELEMENTS or v.rank > RANK for v in found):
            raise Refused
        self.lines.append((text, frozenset(v.name for v in found)))
        self.values += found
        return found

    def body(self, *parameters: Value) -> Growing:
        """An empty body of a loop or branch: it sees its parameters and what is outside."""
        return Growing(self.random, self.smooth, list(parameters), outer=self)

    def parameter(self, like: Value, shape: Sequence[int] | None = None) -> Value:
        """What a body knows of a value it is handed, or of a row of it."""
        return Value(self.fresh(), like.shape if shape is None else tuple(shape), like.dtype, like.unit, like.top)

    def grow(self, count: int, ops: Sequence[Op]) -> None:
        """Add `count` ops, drawn by weight."""
        fitting = [op for op in ops if op.smooth or not self.smooth]
        weights = [op.weight for op in fitting]
        for _ in range(count):
            for _attempt in range(30):
                op = self.random.choices(fitting, weights)[0]
                before = len(self.lines), len(self.values), len(self.root.arguments)
                try:
                    op.grow(self)
                except Refused:
                    del self.lines[before[0] :], self.values[before[1] :], self.root.arguments[before[2] :]
                    continue
                self.root.ops.append(op.name)
                break

    def text(self) -> str:
        """Its lines as the block of a function."""
        return block(self.lines, 4)


@dataclass(frozen=True)
class Op:
    """A way to grow a program; `grow` adds lines, or raises Refused."""

    name: str
    grow: Callable[[Growing], None]
    weight: float
    smooth: bool


def _value(name: str, shape: Any, unit: float | None, top: float) -> Value:
    """What is known of a result: whether its numbers fit its dtype, and so are exact."""
    dtype = str(shape.dtype)
    if dtype == "bool":
        return Value(name, shape.shape, dtype, 1.0, 1.0)
    if dtype not in BITS:
        bits = jnp.iinfo(dtype).bits
        return Value(name, shape.shape, dtype, 1.0, 2.0**bits if dtype[0] == "u" else min(top, 2.0 ** (bits - 1)))
    if unit is not None and top / unit > 2.0 ** BITS[dtype]:
        unit = None
    wide = dtype in ("float64", "complex128")
    if (unit is None and not wide) or top > (TOP.get(dtype, 2.0**40) if unit is not None else 1e4):
        raise Refused
    return Value(name, shape.shape, dtype, unit, top)


def random_program(random: Random, ops: Sequence[Op], length: int = 6) -> RandomProgram:
    """A program of about `length` ops; three in ten are differentiated, some of those rematerialised."""
    smooth = random.random() < 0.3
    growing = Growing(random, smooth)
    growing.argument(growing.shape(), "float64")
    if not smooth:
        growing.argument(growing.shape(), growing.choice(FLOATS + INTEGERS + ("bool", "complex128")))
    growing.grow(random.randint(2, length), ops)
    used = read_by(growing.lines)
    results = [v.name for v in growing.values if v.name not in used or growing.chance(0.2)]
    arguments = [v.name for v in growing.arguments if v.name in used] or [growing.arguments[0].name]
    gradient = growing.choice(["loss", "loss", "jax.checkpoint(loss)"]) if smooth else ""
    return RandomProgram(
        {name: growing.arrays[name] for name in arguments},
        tuple(growing.lines),
        tuple(results or arguments),
        tuple(growing.ops),
        gradient,
    )
