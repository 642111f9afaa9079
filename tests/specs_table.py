"""What a schedule decides as a small text table, for goldens: specs by path, then collectives by scope and in all."""

import jax
from jax.sharding import PartitionSpec

import partir


def table_of(part: partir.Partitioned) -> str:
    """Specs, then collectives by scope and in all."""
    rows = specs_by_path(part)
    widths = [max(len(row[i]) for row in rows) for i in range(2)]
    lines = [f"{path:<{widths[0]}}  {shape:<{widths[1]}}  {spec}" for path, shape, spec in rows]
    lines.append("")
    for scope, counts in sorted(part.collectives_by_scope().items()):
        lines.append(f"{scope or '(no scope)'}: {counts_of(counts)}")
    lines += ["", f"in all: {counts_of(part.collectives)}"]
    return "\n".join(lines)


def specs_by_path(part: partir.Partitioned) -> list[tuple[str, str, str]]:
    """(path, shape, spec) of every argument, then of the results that are not handed on.

    Moments that lie like their parameter are one line together.
    """
    signature = part.program.signature
    arguments = list(zip(signature.arguments, _specs(part.in_specs), strict=True))
    parameters = {leaf.path[1:]: spec for leaf, spec in arguments if leaf.path[0] == "params"}
    alike = {leaf for leaf, spec in arguments if leaf.path[0] == "opt_state" and _parameter_spec(leaf.path, parameters) == spec}
    shown = [(leaf, spec) for leaf, spec in arguments if leaf not in alike]
    for i, (leaf, spec) in enumerate(zip(signature.results, _specs(part.out_specs), strict=True)):
        if i not in signature.argument_of_result:
            shown.append((leaf, spec))
    rows = [(leaf.name, "x".join(map(str, leaf.shape)) or "scalar", _text(spec)) for leaf, spec in shown]
    return [*rows, (f"{len(alike)} moments", "", "as their parameter")] if alike else rows


def counts_of(counts: dict[str, int]) -> str:
    """`2 all_gather, 5 all_reduce`."""
    return ", ".join(f"{number} {kind}" for kind, number in sorted(counts.items())) or "none"


def _parameter_spec(path: tuple[str, ...], parameters: dict[tuple[str, ...], PartitionSpec]) -> PartitionSpec | None:
    """The spec of the parameter a moment belongs to: the one whose whole path the moment's path ends with."""
    return next((spec for own, spec in parameters.items() if path[-len(own) :] == own), None)


def _specs(tree: object) -> list[PartitionSpec]:
    return jax.tree.leaves(tree, is_leaf=lambda x: isinstance(x, PartitionSpec))


def _text(spec: PartitionSpec) -> str:
    """A spec in one form for all versions of JAX."""
    return "P(" + ", ".join("None" if e is None else str(e).replace("'", "") for e in spec) + ")"
