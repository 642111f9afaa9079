"""Copies a function body op by op into a new block: the common ground of putting loops on and taking them off."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from xdsl.ir import Block, Operation, Region, SSAValue

from partir.program import Signature


class Copier:
    """Copies ops into `block`; `values` are what the old values have become. Arguments are called by their paths."""

    def __init__(self, signature: Signature, arguments: Sequence[SSAValue]) -> None:
        self.block = Block()
        self.values: dict[SSAValue, SSAValue] = {}
        for value, leaf in zip(arguments, signature.arguments, strict=True):
            new = self.values[value] = self.block.insert_arg(value.type, len(self.block.args))
            hint = leaf.name.replace("/", ".")
            if SSAValue.is_valid_name(hint):
                new.name_hint = hint

    def copy(self, op: Operation) -> Operation:
        """The op as it is, on the new values."""
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
        """A `while` or `case` on the new values, its regions written by `write` into blocks of their own."""
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
        """Append an op whose results stand for old values."""
        self.block.add_op(new)
        self.values.update(zip(instead_of, new.results, strict=True))


def copied(region: Region, values: dict[SSAValue, SSAValue]) -> Region:
    """A region that reads the new values; what it defines itself is added to `values`."""
    new = Region()
    region.clone_into(new, 0, values)
    return new
