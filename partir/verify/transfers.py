"""The collectives of a compiled program: which, how many bytes, among whom - whatever form the compiler has given them.

| form | where | read as |
|---|---|---|
| `all-gather(...)`, a tuple of several combined | everywhere | one transfer of so many parts |
| `all-gather-start(...)` and `-done` | GPU, TPU | begins, ends |
| `async-start(...)`, `calls=` a computation with the collective | GPU | begins, ends at `async-done` |
| fusion with `custom-call "AsyncCollectiveStart"`, others that carry it on, one with `...Done` | TPU | begins, nothing, ends |
| fusion `all-reduce-scatter` around an all-reduce and slices | TPU | a reduce_scatter |
| `all-reduce` of zeros with a part of each device in them | TPU | an all_reduce that does an all_gather |
| `all-reduce` of which each device keeps a slice | TPU | an all_reduce that does a reduce_scatter |
| an operand that is a concatenation of the compiler's own | GPU | a part for each vector in it |
| `collective-permute` without an op's name: rows moved after a padded reduce_scatter | TPU | a transfer without parts |

An all-to-all of a tuple has one operand for each device of the group: that is one part.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, replace

from partir.verify.hlo import Computation, Groups, Instruction, Module, Shape

KINDS = {
    "all-gather": "all_gather",
    "all-reduce": "all_reduce",
    "reduce-scatter": "reduce_scatter",
    "all-to-all": "all_to_all",
    "ragged-all-to-all": "all_to_all",
    "collective-permute": "collective_permute",
    "collective-broadcast": "collective_permute",
}
PASSED = frozenset({"bitcast", "reshape", "copy", "copy-start", "copy-done"})
"""What leaves the numbers of a vector as they are."""
_ASYNC = re.compile(r"-(start|update|done)$")
_CHAIN = re.compile(r'chain_id="(\d+)"')


@dataclass(frozen=True)
class Part:
    """One collective as it was asked for, before the compiler combined or rewrote it; bytes and elements of whole vectors."""

    kind: str
    bytes: int
    elements: int


@dataclass(frozen=True)
class Transfer:
    """One collective instruction, as it runs; `parts` are the collectives it does the work of (none: it is the compiler's own).

    `bytes` are those of what runs, padding included. Whole vectors are meant: after an all_gather, before a reduce_scatter, of
    an all_reduce; for all_to_all and collective_permute what a device has. It runs `times` times a step. `scope` is the op it
    comes from.
    """

    kind: str
    bytes: int
    parts: tuple[Part, ...]
    groups: Groups
    scope: str = ""
    times: int = 1

    @property
    def devices(self) -> int:
        """How many take part together (0: all there are)."""
        if self.kind == "collective_permute":
            return 2
        return len(self.groups[0]) if self.groups else 0

    def repeated(self, times: int) -> Transfer:
        """The same in a loop."""
        return replace(self, times=self.times * times)


@dataclass(frozen=True)
class Event:
    """A place in the schedule where a transfer begins (and, without a `handle`, ends), or where one with that handle ends."""

    begins: Transfer | None
    handle: str = ""


def event_of(instruction: Instruction, where: Computation, module: Module, devices: int) -> Event | None:
    """What an instruction does on the wires; None for all others. `devices` is the number there are."""
    phase = _ASYNC.search(instruction.opcode)
    stem = _ASYNC.sub("", instruction.opcode)
    if stem in KINDS:
        if phase is None:
            return Event(_transfer(instruction, where, module, stem, devices))
        if phase[1] == "start":
            return Event(_transfer(instruction, where, module, stem, devices), instruction.name)
        return Event(None, instruction.operands[0]) if phase[1] == "done" else None
    if stem == "async":
        return _wrapped(instruction, module, devices)
    if instruction.opcode == "fusion":
        return _fused(instruction, module, devices)
    return None


def _wrapped(instruction: Instruction, module: Module, devices: int) -> Event | None:
    """`async-start` of a computation that is a collective."""
    if instruction.opcode == "async-done":
        return Event(None, instruction.operands[0])
    inner = module.computations.get(instruction.called("calls") or "")
    if instruction.opcode != "async-start" or inner is None:
        return None
    found = _collective_in(inner)
    return Event(_transfer(found, inner, module, found.opcode, devices), instruction.name) if found is not None else None


def _fused(instruction: Instruction, module: Module, devices: int) -> Event | None:
    """A fusion with a collective in it, as the TPU compiler makes them."""
    inner = module.computations.get(instruction.called("calls") or "")
    found = _collective_in(inner) if inner is not None else None
    if inner is None or found is None:
        return None
    chain = _CHAIN.search(found.attributes)
    calls = {
        made.attributes.split('custom_call_target="')[-1].split('"')[0]
        for made in inner.instructions
        if made.opcode == "custom-call"
    }
    if "AsyncCollectiveStart" in calls:
        return Event(_transfer(found, inner, module, found.opcode, devices), f"chain {chain[1] if chain else found.name}")
    if "AsyncCollectiveDone" in calls:
        return Event(None, f"chain {chain[1] if chain else found.name}")
    if chain is not None:
        return None
    scatters = "all-reduce-scatter" in inner.name and found.opcode == "all-reduce"
    return Event(_transfer(found, inner, module, "reduce-scatter" if scatters else found.opcode, devices))


def _collective_in(inner: Computation) -> Instruction | None:
    return next((made for made in inner.instructions if made.opcode in KINDS), None)


def _transfer(instruction: Instruction, where: Computation, module: Module, opcode: str, devices: int) -> Transfer:
    kind = KINDS[opcode]
    groups = instruction.groups
    taking_part = len(groups[0]) if groups else devices
    grown = taking_part if kind == "all_gather" else 1
    size = grown * sum(shape.bytes for name in instruction.operands for shape in where.by_name[name].shapes)
    scope = re.search(r'op_name="([^"]*)"', instruction.attributes)
    parts: list[Part] = []
    for place, name in enumerate(instruction.operands):
        meant = _meant(instruction, place, where, module) if opcode == "all-reduce" else kind
        parts += [Part(meant, grown * shape.bytes, grown * shape.elements) for shape in _joined(name, where, module)]
    if kind == "all_to_all" and len(parts) > 1 and len(parts) % taking_part == 0:
        parts = [_together(parts[i : i + taking_part]) for i in range(0, len(parts), taking_part)]
    if kind == "collective_permute" and scope is None:
        parts = []
    return Transfer(kind, size, tuple(parts), groups, scope[1] if scope else "")


def _together(parts: list[Part]) -> Part:
    return Part(parts[0].kind, sum(part.bytes for part in parts), sum(part.elements for part in parts))


def _meant(instruction: Instruction, place: int, where: Computation, module: Module) -> str:
    """What an all-reduce of one vector was before the TPU compiler rewrote it.

    An all_gather of a short vector becomes the sum of vectors that are zero but for each device's own part; a reduce_scatter of
    one a sum of which each device keeps its slice.
    """
    if _maker(instruction.operands[place], where, module) == "dynamic-update-slice":
        return "all_gather"
    name = instruction.name
    if len(instruction.operands) > 1:
        taken = [use.name for use in where.uses.get(name, []) if use.opcode == "get-tuple-element" and use.index == place]
        name = taken[0] if len(taken) == 1 else ""
    uses = list(_users(name, where, module))
    return "reduce_scatter" if uses and all(use == "dynamic-slice" for use in uses) else "all_reduce"


def _maker(name: str, where: Computation, module: Module) -> str:
    """The opcode that makes a value, inside the fusion that it comes from, whatever shape it is given after."""
    made, element = where.by_name.get(name), -1
    while made is not None:
        inner = module.computations.get(made.called("calls") or "") if made.opcode == "fusion" else None
        if inner is not None:
            where, made = inner, inner.root
        elif made.opcode == "tuple" and element >= 0:
            made, element = where.by_name.get(made.operands[element]), -1
        elif made.opcode in PASSED or made.opcode == "get-tuple-element":
            element = made.index if made.opcode == "get-tuple-element" else element
            made = where.by_name.get(made.operands[0])
        else:
            return made.opcode
    return ""


def _users(name: str, where: Computation, module: Module) -> Iterator[str]:
    """The opcodes that take a value, inside the fusions that use it, whatever shape it is given before."""
    for use in where.uses.get(name, []):
        inner = module.computations.get(use.called("calls") or "") if use.opcode == "fusion" else None
        if inner is not None:
            places = {place for place, operand in enumerate(use.operands) if operand == name}
            for parameter, place in inner.parameters.items():
                if place in places:
                    yield from _users(parameter, inner, module)
        elif use.opcode in PASSED:
            yield from _users(use.name, where, module)
        else:
            yield use.opcode


def _joined(name: str, where: Computation, module: Module) -> tuple[Shape, ...]:
    """The vectors of the program that are sent in one operand: those that XLA for GPUs concatenates to send them together; the
    one that XLA for TPU pads, inside a fusion, to parts of whole tiles; else the one.

    A concatenation of the program's own has the name of its op.
    """
    made = where.by_name[name]
    if made.opcode == "pad" and "all-reduce-scatter" in where.name:
        return where.by_name[made.operands[0]].shapes
    if made.opcode == "fusion" and (inner := module.computations.get(made.called("calls") or "")) is not None:
        root = inner.root
        if root.opcode == "concatenate" and "op_name=" not in root.attributes + made.attributes:
            return tuple(shape for operand in root.operands for shape in inner.by_name[operand].shapes)
    return made.shapes
