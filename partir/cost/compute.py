"""How long kernels take: the roofline of each, by what it computes on its local shapes and what it reads and writes."""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt
from xdsl.dialects.builtin import TensorType
from xdsl.ir import SSAValue

from partir.cost.epilogue import REDUCTIONS
from partir.cost.flops import Work, work_of
from partir.cost.kernels import Floats, Ints, Kernels
from partir.cost.target import Target
from partir.sharding.atoms import Atoms
from partir.sharding.propagation import FactorAxes
from partir.sharding.rule import shape_of

TRANSCENDENTAL_OPS = 8.0
"""Vector operations that an exponential, a logarithm or a tanh takes: a polynomial of about that degree."""

SUBLANES = 8

MASKS = 5.0
"""A reduction takes no longer than this many times what its kernel reads and writes: one of a mask, which is in no memory, is
done with the reduction beside it."""

ON_CHIP_SHARE = 0.8
"""The part of the memory on the chip that compilers fill with what is read again."""


def element_of(value: SSAValue) -> str:
    """The element type of a value by name (`f32`)."""
    return str(value.type.element_type) if isinstance(value.type, TensorType) else ""


@dataclass(eq=False)
class Roofline:
    """What each row is, on its whole shape: R rows, with the time its products take at the target's peak."""

    kernels: Kernels
    atoms: Atoms
    target: Target

    @cached_property
    def works(self) -> list[Work]:
        return [work_of(row) for row in self.kernels.tables.rows]

    @cached_property
    def flops(self) -> Floats:
        """Operations of each row."""
        return np.array([work.flops for work in self.works])

    @cached_property
    def matrix_seconds(self) -> Floats:
        """Seconds of each row on the matrix unit, if one device did it all."""
        rows = self.kernels.tables.rows
        seconds = np.zeros(len(rows))
        for position, work in enumerate(self.works):
            if work.matrix:
                dtype = element_of(rows[position].op.operands[0])
                seconds[position] = work.matrix / self._peak(dtype, work.passes)
        return seconds

    def _peak(self, dtype: str, passes: int) -> float:
        if dtype.startswith("complex"):
            return self.target.peak_flops_per_second("f32", 6 if self.target.platform == "tpu" else 1) / 4
        if dtype == "f32" and self.target.platform == "gpu" and passes == 6:
            return self.target.vector_flops_per_second * self.target.efficiency.matrix
        return self.target.peak_flops_per_second(dtype, passes if self.target.platform == "tpu" and dtype == "f32" else 1)

    @cached_property
    def vector_seconds(self) -> Floats:
        """Seconds of each row on the vector unit, if one device did it all."""
        rate = self.target.vector_flops_per_second * self.target.efficiency.vector
        return np.array([(work.vector + TRANSCENDENTAL_OPS * work.transcendental) / rate for work in self.works])

    @cached_property
    def matrix_rows(self) -> list[int]:
        """Contractions, whose tiles a TPU pads."""
        return [p for p, row in enumerate(self.kernels.tables.rows) if row.op.name == "stablehlo.dot_general"]

    def padding(self, factor_axes: Sequence[FactorAxes], sizes: dict[str, int]) -> Floats:
        """By how much padding to whole tiles of the matrix unit lengthens each of `matrix_rows`."""
        memo: dict[tuple[int, FactorAxes], float] = {}
        found = np.ones(len(self.matrix_rows))
        for k, (position, own) in enumerate(zip(self.matrix_rows, factor_axes, strict=True)):
            key = id(self.atoms.shapes[position]), own
            known = memo.get(key)
            if known is None:
                known = memo[key] = self._padding(position, own, sizes)
            found[k] = known
        return found

    def _padding(self, position: int, own: FactorAxes, sizes: dict[str, int]) -> float:
        shape = self.atoms.shapes[position]
        local = [size // math.prod(sizes[a] for a in own[f]) if own else size for f, size in enumerate(shape.sizes)]
        left, right, result = (
            {p for dim in slot if dim is not None for p in dim} for slot in (shape.slots[0], shape.slots[1], shape.slots[2])
        )
        rows, columns, summed = (
            math.prod(local[f] for f in factors)
            for factors in ((left & result) - right, (right & result) - left, left & right - result)
        )
        unit = self.target.matrix_unit
        return _up(rows, SUBLANES) * _up(columns, unit) * _up(summed, unit) / max(1, rows * columns * summed)

    @cached_property
    def has_matrix(self) -> npt.NDArray[np.bool_]:
        """Whether there is a contraction in each kernel."""
        kernel, row = self.kernels.parts
        return np.bincount(kernel, self.matrix_seconds[row], self.kernels.count) > 0

    @cached_property
    def _reductions(self) -> tuple[Ints, Ints, Floats]:
        """(kernel, row) of each reduction, and its seconds where a loop does it, if one device did it all."""
        rows, rate = self.kernels.tables.rows, self.target.reduced_per_second
        whole = np.zeros(len(rows))
        for position, row in enumerate(rows):
            if rate is not None and row.op.name in REDUCTIONS:
                whole[position] = math.prod(shape_of(row.op.operands[0].type)) / rate
        kernel, row = self.kernels.parts
        reduces = np.flatnonzero(whole[row])
        return kernel[reduces], row[reduces], whole[row[reduces]]

    def reduction_seconds(self, row_cut: Floats, touched: Floats) -> Floats:
        """Seconds of the longest reduction in each kernel [K], were it done in a loop; `touched` [K] are the bytes each kernel
        reads and writes, on the chip or not."""
        kernel, row, whole = self._reductions
        found = np.zeros(self.kernels.count)
        np.maximum.at(found, kernel, whole / row_cut[row])
        return np.minimum(found, MASKS * touched / self.target.hbm_bytes_per_second)

    def apart(self, split: dict[int, float], reduced: Collection[int], reductions: Floats) -> Floats:
        """Seconds on each unit [4, S] of what kernels do only after a collective, in a loop of its own, with the bytes that
        they move for that; `reduced` reduce there."""
        kernels = [*split]
        found = np.zeros((4, len(split)))
        found[2] = np.array([*split.values()]) / (self.target.hbm_bytes_per_second * self.target.efficiency.memory)
        found[3] = [reductions[k] if self.has_matrix[k] and k in reduced else 0.0 for k in kernels]
        return found

    def seconds(self, row_cut: Floats, touched: Floats, padding: Floats | None, reductions: Floats) -> Floats:
        """Seconds of one run of each kernel on each unit, if it had no other work [4, K]: matrix, vector, memory, reductions
        in loops (a contraction reduces its result on the way out).

        `row_cut` [R] are the devices that share each row, `touched` [K] the bytes each kernel reads and writes, `padding` the
        factors of `matrix_rows`, `reductions` as `reduction_seconds` has them.
        """
        part_kernel, part_row = self.kernels.parts
        matrix, vector = self.matrix_seconds / row_cut, self.vector_seconds / row_cut
        if padding is not None:
            matrix[self.matrix_rows] *= padding
        count = self.kernels.count
        on_matrix = np.bincount(part_kernel, matrix[part_row], count)
        on_vector = np.bincount(part_kernel, vector[part_row], count)
        memory = touched / (self.target.hbm_bytes_per_second * self.target.efficiency.memory)
        return np.array([on_matrix, on_vector, memory, np.where(on_matrix > 0, 0.0, reductions)], dtype=np.float64)


def kernel_bytes(kernels: Kernels, local_bytes: Floats) -> Floats:
    """The bytes each kernel reads and writes, given the bytes of each value on one device."""
    reader, value = kernels.reads
    made: Ints = np.flatnonzero(kernels.maker >= 0)
    read: Floats = np.bincount(reader, local_bytes[value] * kernels.read_share, kernels.count).astype(np.float64)
    read += np.bincount(kernels.maker[made], local_bytes[made] * kernels.written_share[made], kernels.count)
    return read


def off_chip(kernels: Kernels, local_bytes: Floats, touched: Floats, capacity: float) -> Floats:
    """Of the bytes that each kernel touches those that go through the device's memory, where `capacity` bytes stay on the chip.

    As a cache that keeps what was touched last (Mattson et al. 1970, stack distances): what is read again before `capacity`
    other bytes were touched is still on the chip, and what is always read so is never written out.
    """
    reader, value = kernels.reads
    passed = np.concatenate([[0.0], np.cumsum(touched)])
    between = passed[reader] - passed[kernels.touched_before + 1] + local_bytes[value]
    stays = (kernels.touched_before >= 0) & (between <= ON_CHIP_SHARE * capacity)
    found: Floats = touched - np.bincount(reader, np.where(stays, local_bytes[value] * kernels.read_share, 0.0), kernels.count)
    inside = kernels.made_inside.copy()
    inside[value[~stays]] = False
    made = np.flatnonzero(inside)
    found -= np.bincount(kernels.maker[made], local_bytes[made] * kernels.written_share[made], kernels.count)
    return np.maximum(found, 0.0)


def _up(size: int, unit: int) -> int:
    return -(-size // unit) * unit
