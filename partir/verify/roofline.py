"""Prices one compiled instruction by the roofline: the larger of its memory time and its time on the matrix unit.

It is for compilers that report no cycles (GPU and CPU). Everything is computed from shapes. A parameter that a fusion only
slices counts with its slices, a result that it only updates in place with its updates.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from functools import cache

from partir.cost.target import Target
from partir.verify.hlo import Computation, Instruction, Module, Shape

FREE = frozenset(
    {
        *("parameter", "constant", "get-tuple-element", "tuple", "bitcast", "after-all", "optimization-barrier", "domain"),
        *("partition-id", "replica-id", "while", "conditional", "call", "copy-done"),
        *("async-start", "async-update", "async-done"),
    }
)
"""Opcodes that move no data, or whose cost is that of the computations they call."""
SLICES = frozenset({"dynamic-slice", "slice", "gather"})
"""Opcodes that read only as much of their first operand as they return."""
_CONTRACTED = re.compile(r'"lhs_contracting_dimensions":\[([^\]]*)\]')
_LABELS = re.compile(r"dim_labels=(\w+)_(\w+)->(\w+)")
_WINDOW = re.compile(r"window=\{([^}]*)\}")


def seconds_of(instruction: Instruction, where: Computation, module: Module, target: Target) -> float:
    """How long one instruction of the computation `where` takes at the target's peak rates."""
    if instruction.opcode in FREE:
        return 0.0
    products = products_of(instruction, where, module)
    busy = sum(flops / target.peak_flops_per_second(dtype) for dtype, flops in products.items())
    return max(busy, bytes_of(instruction, where, module) / target.hbm_bytes_per_second)


def products_of(instruction: Instruction, where: Computation, module: Module) -> Counter[str]:
    """The floating-point operations of the contractions in an instruction, by element type. A multiply-add counts as two."""
    found: Counter[str] = Counter()
    if instruction.opcode == "fusion":
        inner = module.computations[instruction.called("calls") or ""]
        for made in inner.instructions:
            found.update(products_of(made, inner, module))
        return found
    if instruction.opcode not in ("dot", "convolution", "custom-call") or not instruction.operands:
        return found
    sides = [where.by_name[name].shapes for name in instruction.operands[:2] if name in where.by_name]
    if len(sides) < 2 or not sides[0] or not sides[1]:
        return found
    left, right, out = sides[0][0], sides[1][0], instruction.shapes[0]
    labels = _LABELS.search(instruction.attributes)
    contracted = _CONTRACTED.search(instruction.attributes)
    if labels is not None:
        found[dtype_name(left.dtype)] = 2 * _convolution_products(instruction, left, right, *labels.groups())
        return found
    if instruction.opcode == "dot":
        each = math.prod(left.dims[dim] for dim in instruction.numbers("lhs_contracting_dims"))
    elif contracted is not None:
        each = math.prod(left.dims[int(dim)] for dim in re.findall(r"\d+", contracted[1]))
    else:
        return found
    found[dtype_name(left.dtype)] = 2 * out.elements * each
    return found


def _convolution_products(
    made: Instruction, image: Shape, kernel: Shape, image_labels: str, kernel_labels: str, out_labels: str
) -> int:
    """The multiplications of a convolution; those with padding and with the holes of dilation are left out.

    That matters because the TPU compiler writes batched matrix products as convolutions, with the batch as a window of which
    all positions but one are padding or holes.
    """
    written = _WINDOW.search(made.attributes)
    window = dict(field.split("=") for field in written[1].split()) if written else {}
    out = made.shapes[0]
    count = out.dims[out_labels.index("b")] * out.dims[out_labels.index("f")] * kernel.dims[kernel_labels.index("i")]
    spatial = sorted(label for label in kernel_labels if label.isdigit())
    for place, label in enumerate(spatial):

        def field(name: str, default: str, place: int = place) -> str:
            return window[name].split("x")[place] if name in window else default

        count *= _positions(
            image.dims[image_labels.index(label)],
            kernel.dims[kernel_labels.index(label)],
            out.dims[out_labels.index(label)],
            int(field("stride", "1")),
            int(field("pad", "0_0").split("_")[0]),
            int(field("lhs_dilate", "1")),
            int(field("rhs_dilate", "1")),
        )
    return count


@cache
def _positions(image: int, kernel: int, out: int, stride: int, low: int, base: int, window: int) -> int:
    """How many (output, kernel) positions of one spatial dim read an element of the image, not padding or a hole.

    `image`, `kernel` and `out` are sizes, `low` is the padding before the image, `base` the dilation of the image and `window`
    that of the kernel.

    >>> _positions(8, 3, 8, 1, 1, 1, 1), _positions(8, 8, 8, 7, 0, 8, 1)
    (22, 8)
    """
    last, period, count = (image - 1) * base, base // math.gcd(stride, base), 0
    for tap in range(kernel):
        start = tap * window - low
        first = next((o for o in range(period) if (start + o * stride) % base == 0), None)
        if first is not None:
            lowest, highest = max(0, math.ceil(-start / stride)), min(out - 1, (last - start) // stride)
            count += max(0, (highest - first) // period - math.ceil((lowest - first) / period) + 1)
    return count


def bytes_of(instruction: Instruction, where: Computation, module: Module) -> int:
    """The bytes of memory that an instruction reads and writes."""
    made = sum(shape.bytes for shape in instruction.shapes)
    if instruction.opcode in FREE:
        return 0
    if instruction.opcode in SLICES:
        return 2 * made
    given = [sum(shape.bytes for shape in where.by_name[name].shapes) for name in instruction.operands if name in where.by_name]
    if instruction.opcode == "dynamic-update-slice":
        return 2 * given[1]
    if instruction.opcode == "copy-start":
        return 2 * sum(given)
    if instruction.opcode != "fusion":
        return sum(given) + made
    inner = module.computations[instruction.called("calls") or ""]
    reads = _reads(inner)
    return sum(min(size, reads.get(number, size)) for number, size in enumerate(given)) + min(made, _written(inner))


def _reads(inner: Computation) -> dict[int, int]:
    """For each parameter of a fusion that is only sliced or updated in place: the bytes that are read of it."""
    found: dict[int, int] = {}
    for name, number in inner.parameters.items():
        total = 0
        for use in inner.uses.get(name, []):
            if use.opcode in SLICES and use.operands[0] == name:
                total += sum(shape.bytes for shape in use.shapes)
            elif use.opcode != "dynamic-update-slice" or use.operands[0] != name:
                break
        else:
            found[number] = total
    return found


def _written(inner: Computation) -> int:
    """The bytes that a fusion writes; of a result that is updated in place only the update counts."""
    roots = [inner.root]
    if inner.root.opcode == "tuple":
        roots = [inner.by_name[name] for name in inner.root.operands if name in inner.by_name]
    total = 0
    for root in roots:
        while root.opcode in ("bitcast", "copy") and root.operands[0] in inner.by_name:
            root = inner.by_name[root.operands[0]]
        if root.opcode == "dynamic-update-slice" and root.operands[1] in inner.by_name:
            total += sum(shape.bytes for shape in inner.by_name[root.operands[1]].shapes)
        else:
            total += sum(shape.bytes for shape in root.shapes)
    return total


def dtype_name(dtype: str) -> str:
    """The name that targets have for an element type of XLA.

    >>> dtype_name("s8"), dtype_name("f8e4m3fn"), dtype_name("bf16")
    ('i8', 'f8', 'bf16')
    """
    if dtype in ("s8", "u8"):
        return "i8"
    return "f8" if dtype.startswith("f8") else dtype
