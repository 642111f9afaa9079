"""Makes docs/ops.md: every op kind JAX emits over a corpus, and what cutting each of its factors owes: `make ops`.

The corpus: JAX's public functions once each (`tests/surface.py`), the programs of the tests, their gradients, and the zoo's
training steps. What the table says is read from the sharding rules, and each entry is checked by running an op in pieces.
"""

from __future__ import annotations

import os
import platform
import sys
from collections.abc import Iterator
from importlib.metadata import version
from pathlib import Path
from typing import Any

os.environ.setdefault("XLA_FLAGS", "--xla_force_host_platform_device_count=8 --xla_backend_optimization_level=0")
os.environ.setdefault("JAX_PLATFORMS", "cpu")
ROOT = Path(__file__).parent.parent
sys.path.insert(0, str(ROOT / "tests"))

PAGE = Path(__file__).parent / "ops.md"

HEAD = """# Ops

Made by `make ops` (`docs/make_ops.py`) on {where}.

Every op kind that JAX emits for CPUs (and, of linear algebra, for TPUs) over {programs} programs: {functions} public functions
of `jax.lax`, `jax.numpy`, `jax.nn`, `jax.scipy`, `jax.random`, `jax.ops`, `jax.image` and their submodules, called once each;
gradients of the functions of {gradients};
the programs of the tests; the training steps of the zoo. Every public function of these modules is there, but for those
[below](#functions-that-are-not-called).

A *factor* is an index of an op's sharding rule. `lhs + rhs -> result` is one that operands `lhs` and `rhs` and the result have;
with `.` on one side, none there has it. Cutting a factor over a mesh axis costs

- *nothing*: the op runs on the slices;
- *a reduction*: each device has a part of the result, and the parts are put together (`add`, `max`, ...) by an all_reduce, or
  a reduce_scatter where the result is wanted sharded; sums are passed on while that saves bytes;
- *a gather first*: the op needs that dim whole. A value that comes sharded there is gathered for it, and `part.replicated` says
  so with its source line and bytes; the op's other dims stay sharded. An op that has nothing in the first two columns is whole.

Rules are Shardy's (it ships with jaxlib), or partir's own where it says so. Entries were checked by running them: an op alone,
cut in two along such a factor, piece after piece, put together, and compared with the op run whole ({checks} runs, none of them
wrong). "not run" are factors without an even dim of their own in the corpus.
"""

_WINDOW = "the dim the window runs along (pooling, cumulative sums); a halo, or a sum carried from device to device, would do"
_ROWS = "a window of several rows at a running index may lie across two devices; one row has an owner, and is masked"
_PICKED = "windows of several rows, or rows picked by several indices at once"

WHOLE = {
    "chlo.top_k": "the dim whose largest entries are taken; a local top-k, and then k candidates per device, would do",
    "stablehlo.bitcast_convert": "the dim in which one element becomes several, or several one",
    "stablehlo.cholesky": "the matrix is factored row after row",
    "stablehlo.concatenate": "operands of unequal size along the dim they are joined on: places shift",
    "stablehlo.convolution": "space, where the window needs its neighbours (a halo would do)",
    "stablehlo.dynamic_slice": _ROWS,
    "stablehlo.dynamic_update_slice": _ROWS,
    "stablehlo.fft": "the dims that are transformed",
    "stablehlo.gather": _PICKED,
    "stablehlo.pad": "a pad that is no whole block shifts every place",
    "stablehlo.reduce": "several operands combined at once (argmax), a combination of the user's own, bits of integers: no "
    "collective does it",
    "stablehlo.reduce_window": _WINDOW,
    "stablehlo.reshape": "a size that does not go over into the new shape",
    "stablehlo.reverse": "the dim that is turned round: its pieces change places (a permutation of devices would do)",
    "stablehlo.rng_bit_generator": "all numbers come from one state: made whole on each device, so that they are the same",
    "stablehlo.scatter": f"{_PICKED}; a combination of the user's own; a plain `set` along its updates, of which the last wins",
    "stablehlo.select_and_scatter": _WINDOW,
    "stablehlo.slice": "a slice that is not one of equal blocks shifts every place",
    "stablehlo.sort": "the dim that is sorted",
    "stablehlo.triangular_solve": "the matrix is solved row after row",
}
"""Why a factor needs its dim whole, by op."""

CALLS = "a call into a library, which works on whole matrices or rows (dims before them are batch)"
NOBODY = "a call without a rule: it is whole"

FRAMES = {
    "stablehlo.while": "each value it carries: every dim; a sum it adds up is reduced once, after it. The predicate is whole",
    "stablehlo.case": "each result: every dim, in all branches alike. The predicate is whole",
    "stablehlo.optimization_barrier": "each value that passes: every dim",
    "sdy.manual_computation": "a user's `shard_map`: as its specs say",
    "stablehlo.constant": "made again wherever it is used, in the layout that is wanted there",
    "stablehlo.iota": "made again wherever it is used, in the layout that is wanted there",
    "stablehlo.rng": "random numbers without a key: made once, on one device, and sent to all (one all_reduce)",
}
"""What has no rule of its own: control flow, a user's `shard_map`, what must happen once."""


def corpus() -> Iterator[tuple[str, str, Any]]:
    """(source, name, imported program)."""
    from op_coverage import backward, functions, imported, linear_algebra

    from partir.frontend.trace import trace
    from partir.zoo import MODELS

    for name, program in imported(functions()):
        yield "forward", name, program
    for name, program in imported(backward(), must=False):
        yield "backward", name, program
    for name, program in linear_algebra():
        yield "linear algebra", name, program
    for name, model in MODELS.items():
        example = model()
        yield "zoo", name, trace(example.fun, example.args, {})


def collect() -> tuple[dict[str, Any], int]:
    """The table, and the number of programs."""
    import jax
    from op_coverage import note, report

    jax.config.update("jax_enable_x64", True)
    table: dict[str, Any] = {}
    count = 0
    for source, name, program in corpus():
        note(table, source, name, program)
        count += 1
        report(count, name)
        if count % 200 == 0:
            jax.clear_caches()
    return table, count


def cell(kind: Any, owes: str) -> str:
    """The factors of a kind that owe this, with a remark on those that were not run."""
    found: list[str] = []
    for role, runs in sorted(kind.roles.items(), key=lambda item: str(item[0])):
        if role.owes.partition("(")[0] == owes:
            how = role.owes.partition("(")[2].rstrip(")")
            found.append(f"{role}{f': {how}' if how else ''}{'' if runs else ' (not run)'}")
    return "; ".join(dict.fromkeys(found))


def every_dim(kind: Any) -> bool:
    """Whether cutting any factor of a kind costs nothing, and all its values have it."""
    return bool(kind.roles) and all(role.owes == "nothing" for role in kind.roles)


def why(name: str, kind: Any) -> str:
    """Why an op gathers, in words."""
    call = NOBODY if kind.rules == {"none"} else CALLS
    return WHOLE.get(name, call if " @" in name else "")


def rows(table: dict[str, Any]) -> Iterator[tuple[str, ...]]:
    """The rows of the table, kinds with the same cells together."""
    alike: dict[tuple[str, ...], list[str]] = {}
    for name, kind in sorted(table.items()):
        if name in FRAMES or not kind.roles:
            continue
        rule = ", ".join(sorted(kind.rules - {"none"})) or "none"
        gathered = cell(kind, "gathered")
        cells = (cell(kind, "nothing"), cell(kind, "all_reduce"), gathered, why(name, kind) if gathered else "", rule)
        alike.setdefault(("every dim", "", "", "", rule) if every_dim(kind) else cells, []).append(name)
    for cells, names in sorted(alike.items(), key=lambda item: item[1]):
        yield ", ".join(f"`{name}`" for name in names), *cells


def problems(table: dict[str, Any]) -> list[str]:
    """Rules that are wrong, functions that nobody calls, gathers that nobody explains."""
    from surface import missing

    silent = [n for n, k in table.items() if any(r.owes == "gathered" for r in k.roles) and not why(n, k)]
    return [
        *(f"wrong: {name}: {line}" for name, kind in table.items() for line in kind.wrong),
        *(f"nobody says how to call {name}: a line in tests/surface_calls.py" for name in missing()),
        *(f"nobody says why {name} gathers: a line in WHOLE, docs/make_ops.py" for name in silent),
    ]


def page(table: dict[str, Any], programs: int) -> str:
    """The whole document."""
    sys.path.insert(0, str(ROOT / "benchmarks"))
    from op_coverage import DIFFERENTIATED
    from record import table as markdown
    from surface import LEFT_OUT, SURFACE

    headings = ("op", "cut for nothing", "cut, then reduced", "whole, gathered first", "why", "rule")
    others = {name: FRAMES[name] for name in sorted(table) if name in FRAMES}
    free = [name for name, kind in sorted(table.items()) if name not in FRAMES and not kind.roles]
    apart: dict[str, list[str]] = {}
    for name, reason in LEFT_OUT.items():
        apart.setdefault(reason, []).append(f"`{name}`")
    says = HEAD.format(
        where=f"Python {platform.python_version()}, jax {version('jax')}",
        programs=f"{programs:,}",
        functions=len(SURFACE),
        gradients=", ".join(f"`{module}`" for module in DIFFERENTIATED),
        checks=sum(runs for kind in table.values() for runs in kind.roles.values()),
    )
    parts = [
        says,
        f"{len(table)} op kinds, {sum(len(kind.roles) for kind in table.values())} entries.\n",
        markdown(headings, list(rows(table))),
        "\n## Without a rule\n",
        "Control flow and the like are part of the plan itself; the tests of control flow run them on 8 devices.\n",
        markdown(("op", "what is cut"), [(f"`{name}`", text) for name, text in others.items()]),
        "\nWithout a dim to cut wherever they occur, or inside a reduction or a "
        f"user's `shard_map`, where ops stay as they were written: {', '.join(f'`{name}`' for name in free)}.",
        "\n## Functions that are not called\n",
        markdown(("functions", "why"), [(", ".join(names), reason) for reason, names in apart.items()]),
    ]
    return "\n".join(parts) + "\n"


def main() -> int:
    """Write the page; say what is wrong with it."""
    table, programs = collect()
    found = problems(table)
    PAGE.write_text(page(table, programs))
    print("\n".join(found), file=sys.stderr, end="\n" if found else "")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
