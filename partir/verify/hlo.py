"""Parses XLA's compiled HLO text: computations, instructions, shapes, replica groups, and the trip counts of loops.

The text of `jax.stages.Compiled.as_text()` is in schedule order, and on every platform the only complete description of a
compiled program. `transfers.py` finds the collectives in it, `roofline.py` and `schedule.py` price it.
"""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property

_HEADER = re.compile(r"^(?P<entry>ENTRY )?%?(?P<name>[\w.-]+) .*\{$")
_INSTRUCTION = re.compile(r"^\s+(?P<root>ROOT )?%?(?P<name>[\w.-]+) = (?P<type>.*?) (?P<opcode>[a-z][\w-]*)\((?P<text>.*)$")
_SHAPE = re.compile(r"\b(?P<dtype>[a-z]\w*)\[(?P<dims>[\d,<=]*)\]")
_NAME = re.compile(r"%([\w.-]+)")
_TRIPS = re.compile(r'"known_trip_count":\{"n":"(\d+)"\}')
_BRANCHES = re.compile(r"branch_computations=\{([^}]*)\}")
_LISTED = re.compile(r"replica_groups=\{(\{[\d,{}]*\})?\}")
_IOTA = re.compile(r"replica_groups=\[(?P<shape>[\d,]+)\]<=\[(?P<grid>[\d,]+)\](?:T\((?P<order>[\d,]+)\))?")
_MESH = re.compile(r"replica_groups=mesh\[(?P<mesh>[^\]]*)\] \{(?P<axes>[^}]*)\}")
_PAIRS = re.compile(r"source_target_pairs=\{(\{[\d,{}]*\})?\}")

BITS = {"pred": 8, "token": 0, "opaque": 0}
"""Bits per element of the types without a number in their name. (`f32`, `bf16`, `s4`, `f8e4m3fn`, `c64` have one.)"""

Groups = tuple[tuple[int, ...], ...]
"""Replica groups, as device numbers in the program; for a collective permute, its (source, target) pairs."""


@dataclass(frozen=True)
class Shape:
    """One array: an element type as XLA names it, and its dims."""

    dtype: str
    dims: tuple[int, ...]

    @property
    def elements(self) -> int:
        """The number of elements."""
        return math.prod(self.dims)

    @property
    def bytes(self) -> int:
        """Its bytes without padding; elements of four-bit types count half a byte each."""
        return -(-self.elements * bits_of(self.dtype) // 8)


def bits_of(dtype: str) -> int:
    """The bits of one element.

    >>> [bits_of(dtype) for dtype in ("f32", "bf16", "s4", "f8e4m3fn", "c64", "pred")]
    [32, 16, 4, 8, 64, 8]
    """
    if dtype in BITS:
        return BITS[dtype]
    found = re.match(r"[a-z]+(\d+)", dtype)
    return int(found[1]) if found else 0


def shapes_of(text: str) -> list[Shape]:
    """The arrays of a type in HLO text, in order for a tuple; memory layouts are ignored.

    >>> shapes_of("(f32[8,4]{1,0:T(8,128)}, /*index=1*/u32[]{:S(2)})")
    [Shape(dtype='f32', dims=(8, 4)), Shape(dtype='u32', dims=())]
    """
    return [
        Shape(found["dtype"], tuple(int(size.lstrip("<=")) for size in found["dims"].split(",") if size))
        for found in _SHAPE.finditer(text)
    ]


@dataclass(frozen=True, eq=False)
class Instruction:
    """One instruction (a line of text): `NAME = TYPE OPCODE(TEXT`, where `text` is everything after the opening bracket."""

    name: str
    opcode: str
    type: str
    text: str
    root: bool = False

    @cached_property
    def _end(self) -> int:
        """Where in `text` the closing bracket of the operands is."""
        depth = 1
        for found in re.finditer(r"[(){}]", self.text):
            depth += 1 if found[0] in "({" else -1
            if depth == 0:
                return found.start()
        return len(self.text)

    @property
    def inside(self) -> str:
        """The text between the brackets: names of operands, the value of a constant, or the number of a parameter."""
        return self.text[: self._end]

    @property
    def attributes(self) -> str:
        """The text after the closing bracket."""
        return self.text[self._end + 1 :]

    @cached_property
    def operands(self) -> tuple[str, ...]:
        """Names of the operands."""
        return tuple(_NAME.findall(self.inside))

    @cached_property
    def shapes(self) -> tuple[Shape, ...]:
        """The arrays of its result."""
        return tuple(shapes_of(self.type))

    def called(self, attribute: str) -> str | None:
        """The computation that an attribute (`calls`, `body`, `condition`, `to_apply`) names."""
        found = re.search(rf"\b{attribute}=%?([\w.-]+)", self.attributes)
        return found[1] if found else None

    @property
    def branches(self) -> list[str]:
        """The computations of a conditional."""
        found = _BRANCHES.search(self.attributes)
        if found:
            return re.findall(r"[\w.-]+", found[1])
        return [name for side in ("true", "false") if (name := self.called(f"{side}_computation"))]

    @property
    def index(self) -> int:
        """Which element of a tuple a `get-tuple-element` takes."""
        found = re.search(r"\bindex=(\d+)", self.attributes)
        return int(found[1]) if found else -1

    def numbers(self, attribute: str) -> tuple[int, ...]:
        """The list of numbers that an attribute has, as in `lhs_contracting_dims={1}`."""
        found = re.search(rf"\b{attribute}=\{{([\d,]*)\}}", self.attributes)
        return _numbers(found[1]) if found else ()

    @property
    def groups(self) -> Groups:
        """The replica groups, in any of XLA's notations; () without the attribute, which means all devices."""
        return groups_of(self.attributes)


@dataclass(frozen=True, eq=False)
class Computation:
    """Instructions in schedule order."""

    name: str
    instructions: list[Instruction] = field(default_factory=list[Instruction])

    @cached_property
    def by_name(self) -> Mapping[str, Instruction]:
        return {instruction.name: instruction for instruction in self.instructions}

    @cached_property
    def root(self) -> Instruction:
        return next((found for found in self.instructions if found.root), self.instructions[-1])

    @cached_property
    def parameters(self) -> Mapping[str, int]:
        """The number of each parameter, by its name."""
        return {found.name: int(found.inside) for found in self.instructions if found.opcode == "parameter"}

    @cached_property
    def uses(self) -> Mapping[str, list[Instruction]]:
        """For each value, by name: the instructions that have it as an operand."""
        found: dict[str, list[Instruction]] = {}
        for made in self.instructions:
            for name in dict.fromkeys(made.operands):
                found.setdefault(name, []).append(made)
        return found


@dataclass(frozen=True, eq=False)
class Module:
    """A compiled program."""

    computations: Mapping[str, Computation]
    entry: Computation

    @classmethod
    def parse(cls, text: str) -> Module:
        """Parse the text of a compiled program. Raises ValueError for text without an ENTRY computation."""
        computations: dict[str, Computation] = {}
        entry = current = None
        for line in text.splitlines():
            if line.startswith((" ", "\t")):
                found = _INSTRUCTION.match(line)
                if found is not None and current is not None:
                    made = Instruction(found["name"], found["opcode"], found["type"], found["text"], bool(found["root"]))
                    current.instructions.append(made)
            elif (found := _HEADER.match(line)) is not None:
                current = computations[found["name"]] = Computation(found["name"])
                entry = current if found["entry"] else entry
        if entry is None:
            raise ValueError(f"no ENTRY computation in {len(text)} characters of HLO text")
        return cls(computations, entry)

    def trips(self, loop: Instruction, where: Computation) -> int | None:
        """The trip count of a `while` in the computation `where`; None if it depends on data.

        XLA on CPU and GPU writes the trip count down. On TPU it is computed from the induction variable: its initial value,
        what the body adds to it, and what the condition compares it with.
        """
        found = _TRIPS.search(loop.attributes)
        if found:
            return int(found[1])
        condition, body = (self.computations.get(loop.called(name) or "") for name in ("condition", "body"))
        if condition is None or body is None:
            return None
        compare = self._compare(condition)
        if compare is None:
            return None
        index, bound, direction = compare
        start = self._start(where, loop.operands[0], index)
        if start is None:
            return None
        following = self.scalar(body, body.root.operands[index], {index: start}) if body.root.opcode == "tuple" else None
        beyond = {"LT": 0, "GT": 0, "NE": 0, "LE": 1, "GE": -1}.get(direction)
        if following is None or following == start or beyond is None:
            return None
        distance = bound - start + beyond
        return max(0, math.ceil(distance / (following - start)))

    def _start(self, where: Computation, tuple_: str, index: int) -> int | None:
        """The initial value of element `index` of a loop's state, if that is a known integer."""
        made = where.by_name.get(tuple_)
        if made is None or made.opcode != "tuple" or index >= len(made.operands):
            return None
        return self.scalar(where, made.operands[index], {})

    def _compare(self, condition: Computation) -> tuple[int, int, str] | None:
        """A loop's condition as (element of the loop's state, bound, direction); None if it compares anything else.

        The comparison may be inside a fusion.
        """
        root = condition.root
        sides = [(condition, name) for name in root.operands]
        if root.opcode == "fusion" and (inner := self.computations.get(root.called("calls") or "")) is not None:
            given, root = root.operands, inner.root
            numbers = inner.parameters
            sides = [(condition, given[numbers[name]]) if name in numbers else (inner, name) for name in root.operands]
        if root.opcode != "compare":
            return None
        states = [self._state(holder, side) for holder, side in sides]
        values = [self.scalar(holder, side, {}) for holder, side in sides]
        direction = (re.search(r"direction=(\w+)", root.attributes) or [None, ""])[1] or ""
        if states[0] is not None and values[1] is not None:
            return states[0], values[1], direction
        if states[1] is not None and values[0] is not None:
            turned = {"LT": "GT", "GT": "LT", "LE": "GE", "GE": "LE"}
            return states[1], values[0], turned.get(direction, direction)
        return None

    @staticmethod
    def _state(condition: Computation, name: str) -> int | None:
        """The number of the element of the loop's state that a value of its condition is; None if it is none."""
        made = condition.by_name.get(name)
        while made is not None and made.opcode in ("copy", "bitcast"):
            made = condition.by_name.get(made.operands[0])
        if made is None or made.opcode != "get-tuple-element":
            return None
        return made.index

    def scalar(self, where: Computation, name: str, state: Mapping[int, int]) -> int | None:
        """The value of an integer scalar that is computed from constants and known elements (`state`) of a loop's state.

        None if it depends on anything else.
        """
        made = where.by_name.get(name)
        if made is None:
            return None
        if made.opcode == "constant":
            return int(made.inside) if re.fullmatch(r"-?\d+", made.inside) else None
        if made.opcode in ("copy", "bitcast", "convert", "reshape", "copy-start", "copy-done"):
            return self.scalar(where, made.operands[0], state)
        if made.opcode == "get-tuple-element":
            source = where.by_name.get(made.operands[0])
            if source is None or source.opcode != "parameter":
                return None
            return state.get(made.index)
        if made.opcode in ("add", "subtract"):
            sides = [self.scalar(where, operand, state) for operand in made.operands]
            if sides[0] is None or sides[1] is None:
                return None
            return sides[0] + sides[1] if made.opcode == "add" else sides[0] - sides[1]
        inner = self.computations.get(made.called("calls") or "")
        if made.opcode == "fusion" and inner is not None:
            return self._fused(where, made, inner, state)
        return None

    def _fused(self, where: Computation, made: Instruction, inner: Computation, state: Mapping[int, int]) -> int | None:
        """The scalar that a fusion computes: known operands are put into the fused computation as constants."""
        known = [self.scalar(where, operand, state) for operand in made.operands]
        replaced = [
            Instruction(found.name, "constant", found.type, f"{value})", found.root)
            if found.name in inner.parameters and (value := known[inner.parameters[found.name]]) is not None
            else found
            for found in inner.instructions
        ]
        return self.scalar(Computation(inner.name, replaced), inner.root.name, {})


def groups_of(attributes: str) -> Groups:
    """The replica groups (or the pairs of a collective permute) in the attributes of an instruction.

    >>> groups_of("replica_groups={{0,2},{1,3}}, dimensions={0}")
    ((0, 2), (1, 3))
    >>> groups_of("replica_groups=[2,4]<=[4,2]T(1,0)")
    ((0, 2, 4, 6), (1, 3, 5, 7))
    >>> groups_of("replica_groups=mesh['data'=2,'model'=2] {'model'}")
    ((0, 1), (2, 3))
    >>> groups_of("source_target_pairs={{0,1},{1,0}}")
    ((0, 1), (1, 0))
    """
    listed = _LISTED.search(attributes) or _PAIRS.search(attributes)
    if listed:
        return tuple(_numbers(group) for group in re.findall(r"\{([\d,]*)\}", listed[1] or ""))
    if (found := _IOTA.search(attributes)) is not None:
        grid = _numbers(found["grid"])
        order = _numbers(found["order"]) if found["order"] else tuple(range(len(grid)))
        return _groups_of_size(_transposed(grid, order), _numbers(found["shape"])[-1])
    if (found := _MESH.search(attributes)) is not None:
        sizes = {name: int(size) for name, size in re.findall(r"'([^']*)'=(\d+)", found["mesh"])}
        axes = re.findall(r"'([^']*)'", found["axes"])
        names = list(sizes)
        rest = [name for name in names if name not in axes]
        order = [names.index(name) for name in (*rest, *axes)]
        return _groups_of_size(_transposed(tuple(sizes.values()), order), math.prod(sizes[name] for name in axes))
    return ()


def _transposed(grid: Sequence[int], order: Sequence[int]) -> Iterator[int]:
    """The numbers 0, 1, ... of a row-major grid, read with its dims in the order `order`."""
    strides = [math.prod(grid[i + 1 :]) for i in range(len(grid))]
    for position in itertools.product(*(range(grid[i]) for i in order)):
        yield sum(at * strides[i] for at, i in zip(position, order, strict=True))


def _groups_of_size(numbers: Iterator[int], size: int) -> Groups:
    flat = list(numbers)
    return tuple(tuple(flat[i : i + size]) for i in range(0, len(flat), size))


def _numbers(text: str) -> tuple[int, ...]:
    return tuple(int(number) for number in text.split(",") if number)
