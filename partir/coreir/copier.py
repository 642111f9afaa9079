"""Copies a function body op by op into a new block; both putting loops around ops and erasing them use it."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from xdsl.ir import Block, Operation, Region, SSAValue

from partir.program import Signature


class Copier:
    """Copies ops into `block`; `values` maps old values to new ones. Arguments get their paths as names."""

    def __init__(self, signature: Signature, arguments: Sequence[SSAValue]) -> None:
        self.block = Block()
        self.values: dict[SSAValue, SSAValue] = {}
        for value, leaf in zip(arguments, signature.arguments, strict=True):
            new = self.values[value] = self.block.insert_arg(value.type, len(self.block.args))
            hint = leaf.name.replace("/", ".")
            if SSAValue.is_valid_name(hint):
                new.name_hint = hint

    def copy(self, op: Operation) -> Operation:
        """Copy an op unchanged, on the new values."""
        values = self.values
        new = type(op).create(
            operands=[values[v] for v in op.operands],
            result_types=[r.type for r in op.results],
            properties=dict(op.properties),
            attributes=dict(op.attributes),
            regions=[copied(region, values) for region in op.regions],
        )
        self.add(new, op.results)
        return new

    def copy_control(self, op: Operation, write: Callable[[Block], None]) -> Operation:
        """Copy a `while` or `case` on the new values; `write` fills a new block for each block of its regions."""
        outer = self.block
        regions: list[Region] = []
        for region in op.regions:
            blocks: list[Block] = []
            for old in region.blocks:
                self.block = Block(arg_types=old.arg_types)
                self.values.update(zip(old.args, self.block.args, strict=True))
                write(old)
                blocks.append(self.block)
            regions.append(Region(blocks))
        self.block = outer
        new = type(op).create(
            operands=[self.values[v] for v in op.operands],
            result_types=[r.type for r in op.results],
            properties=dict(op.properties),
            attributes=dict(op.attributes),
            regions=regions,
        )
        self.add(new, op.results)
        return new

    def add(self, new: Operation, instead_of: Sequence[SSAValue]) -> None:
        """Append an op whose results replace the old values `instead_of`."""
        self.block.add_op(new)
        self.values.update(zip(instead_of, new.results, strict=True))


def copied(region: Region, values: dict[SSAValue, SSAValue]) -> Region:
    """A copy of a region that reads the new values; the values that it defines itself are added to `values`."""
    new = Region()
    region.clone_into(new, 0, values)
    return new
