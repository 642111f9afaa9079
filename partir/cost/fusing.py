"""What a platform's compiler does to a program that its costs depend on: what becomes one kernel, where memory is taken."""

from __future__ import annotations

from dataclasses import dataclass, replace


@dataclass(frozen=True)
class Fusing:
    """What a compiler puts into one kernel: whether contractions take the pointwise ops before and after them."""

    into_matrix: bool
    narrow_operands: bool
    """Whether an f32 value that only contractions read is stored as bf16 (TPU, default precision)."""
    copies_state: bool
    """Whether donated state that is gathered anew at the end is copied before the step, and the new one into its place after it
    (XLA for TPU does not write a gather over what others read)."""

    frees_early: bool
    """Whether what frees memory is moved forward."""
    joined: tuple[str, ...]
    """The kinds of collectives by which sums that wait for no other are one."""

    in_place: bool
    """Whether a pointwise kernel writes over an operand of its size that dies there."""


_GPU = Fusing(
    into_matrix=False,
    narrow_operands=False,
    copies_state=False,
    frees_early=False,
    joined=("all_reduce", "reduce_scatter"),
    in_place=False,
)
_CPU = replace(_GPU, frees_early=True, joined=("all_reduce",), in_place=True)
_TPU = replace(_CPU, into_matrix=True, narrow_operands=True, copies_state=True)

FUSINGS = {"tpu": _TPU, "gpu": _GPU, "cpu": _CPU}
"""By platform, as XLA does."""
