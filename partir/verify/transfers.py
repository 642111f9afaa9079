"""Finds the collectives of a compiled program in all the forms that compilers give them: kind, bytes and replica groups.

| form | platform | read as |
|---|---|---|
| `all-gather(...)`, or a tuple of several, combined | all | one transfer with a part for each |
| `all-gather-start(...)` and `-done` | GPU, TPU | begins, ends |
| `async-start(...)`, `calls=` a computation with the collective | GPU | begins; ends at `async-done` |
| fusion with `custom-call "AsyncCollectiveStart"`, others of its chain, one with `...Done` | TPU | begins, nothing, ends |
| fusion `all-reduce-scatter` around an all-reduce and slices | TPU | a reduce_scatter |
| `all-reduce` of zeros into which each device has written its shard | TPU | an all_reduce that does an all_gather |
| `all-reduce` of which each device keeps a slice | TPU | an all_reduce that does a reduce_scatter |
| an operand that the compiler itself concatenated | GPU | a part for each tensor in it |
| `collective-permute` without an op name: moves rows after a padded reduce_scatter | TPU | a transfer without parts |

An all-to-all of a tuple has one operand for each device of the group: together they are one part.
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
"""Opcodes that leave the elements of a tensor unchanged."""
_ASYNC = re.compile(r"-(start|update|done)$")
_CHAIN = re.compile(r'chain_id="(\d+)"')


@dataclass(frozen=True)
class Part:
    """One collective of the program, before the compiler combined or rewrote it; bytes and elements of its full tensor (see
    `Transfer`)."""

    kind: str
    bytes: int
    elements: int


@dataclass(frozen=True)
class Transfer:
    """One collective instruction of the compiled program; `parts` are the collectives of the program whose work it does (none
    if the compiler itself added it).

    `bytes` is the size of the full tensor, padding included: after an all_gather, before a reduce_scatter, of an all_reduce;
    for all_to_all and collective_permute what one device has. It runs `times` times in a step. `scope` is the name of its op.
    """

    kind: str
    bytes: int
    parts: tuple[Part, ...]
    groups: Groups
    scope: str = ""
    times: int = 1

    @property
    def devices(self) -> int:
        """The number of devices in a group (0: all devices of the program)."""
        if self.kind == "collective_permute":
            return 2
        return len(self.groups[0]) if self.groups else 0

    def repeated(self, times: int) -> Transfer:
        """The same transfer in a loop of `times` iterations."""
        return replace(self, times=self.times * times)


@dataclass(frozen=True)
class Event:
    """A point of the schedule where a transfer begins, or (`begins` is None) where the transfer with this `handle` ends.

    A transfer that begins without a handle is synchronous: it ends at the same point.
    """

    begins: Transfer | None
    handle: str = ""


def event_of(instruction: Instruction, where: Computation, module: Module, devices: int) -> Event | None:
    """The event of an instruction that begins or ends a collective; None for all others.

    `devices` is the number of devices of the program.
    """
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
    """The event of an `async-start` or `async-done` whose computation is a collective."""
    if instruction.opcode == "async-done":
        return Event(None, instruction.operands[0])
    inner = module.computations.get(instruction.called("calls") or "")
    if instruction.opcode != "async-start" or inner is None:
        return None
    found = _collective_in(inner)
    return Event(_transfer(found, inner, module, found.opcode, devices), instruction.name) if found is not None else None


def _fused(instruction: Instruction, module: Module, devices: int) -> Event | None:
    """The event of a fusion with a collective in it, as the TPU compiler makes them."""
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
        original = _original_kind(instruction, place, where, module) if opcode == "all-reduce" else kind
        parts += [Part(original, grown * shape.bytes, grown * shape.elements) for shape in _tensors_in(name, where, module)]
    if kind == "all_to_all" and len(parts) > 1 and len(parts) % taking_part == 0:
        parts = [_summed(parts[i : i + taking_part]) for i in range(0, len(parts), taking_part)]
    if kind == "collective_permute" and scope is None:
        parts = []
    return Transfer(kind, size, tuple(parts), groups, scope[1] if scope else "")


def _summed(parts: list[Part]) -> Part:
    return Part(parts[0].kind, sum(part.bytes for part in parts), sum(part.elements for part in parts))


def _original_kind(instruction: Instruction, place: int, where: Computation, module: Module) -> str:
    """The kind that an all-reduce's operand number `place` had in the program, before the TPU compiler rewrote it.

    It rewrites an all_gather of a small tensor as a sum of tensors that are zero except for each device's shard, and a
    reduce_scatter of one as a sum of which each device keeps its slice.
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
    """The opcode that makes a value, looked for inside fusions and behind reshapes and copies."""
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
    """The opcodes that read a value, looked for inside fusions and behind reshapes and copies."""
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


def _tensors_in(name: str, where: Computation, module: Module) -> tuple[Shape, ...]:
    """The tensors of the program that are sent in one operand of a collective.

    XLA for GPUs concatenates tensors to send them together. XLA for TPU pads a tensor inside a fusion, so that each device's
    part is made of full tiles; the unpadded tensor counts. Any other operand is one tensor. (A concatenation that the program
    itself has is told apart by its op name.)
    """
    made = where.by_name[name]
    if made.opcode == "pad" and "all-reduce-scatter" in where.name:
        return where.by_name[made.operands[0]].shapes
    if made.opcode == "fusion" and (inner := module.computations.get(made.called("calls") or "")) is not None:
        root = inner.root
        if root.opcode == "concatenate" and "op_name=" not in root.attributes + made.attributes:
            return tuple(shape for operand in root.operands for shape in inner.by_name[operand].shapes)
    return made.shapes
