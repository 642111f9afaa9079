"""What each schedule decides, as small tables whose diff is the review of a change: model x mesh x schedule."""

import functools

import jax
import pytest
from jax.sharding import PartitionSpec
from schedules import SCHEDULES

import partir
from partir import zoo

pytestmark = pytest.mark.jax

MODELS = {
    "gpt": lambda: zoo.gpt(layers=1, d_model=32, heads=4, vocab=64, seq=8, batch=8),
    "mlp": lambda: zoo.mlp((16, 32, 32, 8), batch=16),
}
MESH = partir.Mesh(data=4, model=2)
TABLE = ["batch", "megatron", "both", "both+zero2", "both+zero3", "megatron+sequence"]
"""The schedules of the issue's table."""


@functools.cache
def traced(model: str) -> partir.Traced:
    example = MODELS[model]()
    return partir.jit(example.fun, mesh=MESH, donate_argnums=example.donate_argnums).trace(*example.args)


def specs_by_path(part: partir.Partitioned) -> list[tuple[str, str, str]]:
    """(path, shape, spec) of every argument, then of the results that are not handed on.

    Moments that lie like their parameter are one line together.
    """
    signature = part.program.signature
    arguments = list(zip(signature.arguments, _specs(part.in_specs), strict=True))
    parameters = {leaf.path[1:]: spec for leaf, spec in arguments if leaf.path[0] == "params"}
    alike = {leaf for leaf, spec in arguments if leaf.path[0] == "opt_state" and parameters.get(leaf.path[-_DEPTH:]) == spec}
    shown = [(leaf, spec) for leaf, spec in arguments if leaf not in alike]
    for i, (leaf, spec) in enumerate(zip(signature.results, _specs(part.out_specs), strict=True)):
        if i not in signature.argument_of_result:
            shown.append((leaf, spec))
    rows = [(leaf.name, "x".join(map(str, leaf.shape)) or "scalar", _text(spec)) for leaf, spec in shown]
    return [*rows, (f"{len(alike)} moments", "", "as their parameter")] if alike else rows


_DEPTH = 2
"""Levels of a parameter's path in a Haiku model: module and name."""


def _specs(tree: object) -> list[PartitionSpec]:
    return jax.tree.leaves(tree, is_leaf=lambda x: isinstance(x, PartitionSpec))


def _text(spec: PartitionSpec) -> str:
    """A spec in one form for all versions of JAX."""
    return "P(" + ", ".join("None" if e is None else str(e).replace("'", "") for e in spec) + ")"


def table_of(part: partir.Partitioned) -> str:
    """Specs, then collectives by scope and in all."""
    rows = specs_by_path(part)
    widths = [max(len(row[i]) for row in rows) for i in range(2)]
    lines = [f"{path:<{widths[0]}}  {shape:<{widths[1]}}  {spec}" for path, shape, spec in rows]
    lines.append("")
    for scope, counts in sorted(part.collectives_by_scope().items()):
        lines.append(f"{scope or '(no scope)'}: {_counts(counts)}")
    lines += ["", f"in all: {_counts(part.collectives)}"]
    return "\n".join(lines)


def _counts(counts: dict[str, int]) -> str:
    return ", ".join(f"{number} {kind}" for kind, number in sorted(counts.items())) or "none"


CASES = [(m, s) for m in MODELS for s in TABLE if (m, s) != ("mlp", "megatron+sequence")]  # which has no sequence


@pytest.mark.parametrize(("model", "schedule"), CASES)
def test_what_a_schedule_decides(model, schedule, golden):
    part = traced(model).partition(SCHEDULES[schedule])

    golden(f"{model}-4x2-{schedule}", table_of(part))


def test_partirs_transformer_counts(golden):
    """Published for this model are the first three rows (arXiv 2401.11202); the others are ours."""
    example = zoo.partir_t32()
    tr = partir.jit(example.fun, mesh=MESH, donate_argnums=example.donate_argnums).trace(*example.args)

    lines = [f"{name}: {_counts(tr.partition(SCHEDULES[name]).collectives)}" for name in TABLE]

    golden("partir_t32-4x2", "\n".join(lines))
