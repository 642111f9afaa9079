"""Makes docs/dialect.md from the docstrings of dialects, attributes and ops; `--check` only compares (exit 1 if stale)."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Iterator
from pathlib import Path

from xdsl.ir import Attribute, Dialect, Operation
from xdsl.irdl import IRDLOperation, OptionalDef, VariadicDef

from partir.dialect import chlo, core, sdy, spmd, stablehlo, stablehlo_ops, stablehlo_regions

PAGE = Path(__file__).parent / "dialect.md"

INTRODUCTION = """\
# The dialects

Made by `docs/make_dialect.py` from the docstrings in `partir/dialect/`. Text of all of them is read and printed by
`partir opt`, and by `partir.dialect.text` from Python.

| dialect | for |
|---|---|
| [`partir`](#partir) | Core IR: StableHLO plus loops over mesh axes, with the meaning of the program it came from |
| [`spmd`](#spmd) | SPMD IR: the program of one device, with explicit collectives |
| [`sdy`](#sdy) | Shardy's meshes, shardings and rules, printed as MLIR prints them |
| [`stablehlo`](#stablehlo), [`chlo`](#chlo) | the operations of the programs themselves |

The road of one line, `y = tanh(x)` with the rows of `x` on 4 devices:

```text
the program     %y = stablehlo.tanh %x : tensor<8x16xf32>

Core IR         %y = partir.loop "data"=4 [tile<0>] (%i) : tensor<8x16xf32> {
                  %xs = partir.slice %x[%i] tile<0> : tensor<8x16xf32> -> tensor<2x16xf32>
                  %s = stablehlo.tanh %xs : tensor<2x16xf32>
                  partir.yield %s : tensor<2x16xf32>
                }

SPMD IR         %s = stablehlo.tanh %xs : tensor<2x16xf32>                    %xs is what the device holds
                %y = spmd.all_gather %s tile<0> ["data"=4] : ...              only where a use wants all of %y
```
"""


def docs_of(thing: type) -> str:
    """A docstring, which every attribute and op must have."""
    if not (text := inspect.getdoc(thing)) or text == inspect.getdoc(IRDLOperation):
        sys.exit(f"{thing.__module__}.{thing.__name__} has no docstring")
    return text


def signature(op: type[Operation]) -> Iterator[str]:
    """One row each for operands, properties, results and regions, where there are any."""
    assert issubclass(op, IRDLOperation)
    definition = op.get_irdl_definition()
    parts = {
        "operands": definition.operands,
        "properties": list(definition.properties.items()),
        "results": definition.results,
        "regions": definition.regions,
    }
    for title, entries in parts.items():
        if entries:
            yield f"- {title}: {', '.join(f'`{name}`{count(kind)}' for name, kind in entries)}"


def count(kind: object) -> str:
    """How often an operand, property or result occurs, where that is not once."""
    if isinstance(kind, OptionalDef):
        return " (optional)"
    return " (any number)" if isinstance(kind, VariadicDef) else ""


def chapter(dialect: Dialect, module_docs: str, documented: Iterator[type[Operation]]) -> Iterator[str]:
    """A dialect with attributes and ops, each under a heading of its own."""
    yield f"## {dialect.name}\n\n{module_docs}\n"
    for attribute in dialect.attributes:
        if is_ours(attribute):
            yield f"### `#{attribute.name}`\n\n{docs_of(attribute)}\n"
    for op in documented:
        yield "\n".join([f"### `{op.name}`\n", docs_of(op), "", *signature(op), ""])


def is_ours(attribute: type[Attribute]) -> bool:
    """Whether an attribute has a class of its own (not only a text that is kept)."""
    return attribute.__module__.startswith("partir.")


def table(ops: Iterator[type[Operation]]) -> Iterator[str]:
    """One row per op that has no docstring of its own."""
    yield "| op | operands and results | properties |"
    yield "|---|---|---|"
    for op in ops:
        assert issubclass(op, IRDLOperation)
        arrow = docs_of(op).split(": ", 1)[1]
        properties = [
            f"`{name}`{'?' if isinstance(kind, OptionalDef) else ''}"
            for name, kind in sorted(op.get_irdl_definition().properties.items())
        ]
        yield f"| `{op.name}` | {arrow} | {', '.join(properties)} |"


def page() -> str:
    """The whole of docs/dialect.md."""
    later = set(sdy.LATER)
    extra = [op for op in stablehlo.OPS.values() if op.__module__.startswith("partir.")]
    regions = [stablehlo_regions.ReduceOp, stablehlo_regions.WhileOp]
    parts = [
        INTRODUCTION,
        *chapter(core.PARTIR, docs_of_module(core), core.PARTIR.operations),
        *chapter(spmd.SPMD, docs_of_module(spmd), spmd.SPMD.operations),
        *chapter(sdy.SDY, docs_of_module(sdy), (op for op in sdy.SDY.operations if op not in later)),
        "### What only later passes of Shardy produce\n",
        *table(iter(sdy.LATER)),
        "",
        *chapter(stablehlo.STABLEHLO, docs_of_module(stablehlo), iter(regions)),
        "### Added to xdsl-jax's ops, or replacing them\n",
        docs_of_module(stablehlo_ops) + "\n",
        *table(op for op in extra if op not in regions),
        "",
        f"## chlo\n\n{docs_of_module(chlo)}\n",
        *table(chlo.CHLO.operations),
    ]
    return "\n".join(parts).rstrip() + "\n"


def docs_of_module(module: object) -> str:
    """A module's docstring."""
    return inspect.getdoc(module) or sys.exit(f"{module} has no docstring")


def main() -> int:
    """Write the page, or with `--check` compare it."""
    text = page()
    if "--check" not in sys.argv[1:]:
        PAGE.write_text(text)
        return 0
    if PAGE.exists() and PAGE.read_text() == text:
        return 0
    print(f"{PAGE.name} is stale\n  try     python docs/make_dialect.py", file=sys.stderr)
    return 1


if __name__ == "__main__":
    sys.exit(main())
