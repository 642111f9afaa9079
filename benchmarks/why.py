"""Compares plain jit over a mesh with partir on programs that users reported, with the same shardings; writes `docs/why.md`.

For both compiled programs it shows the collectives, the bytes that a device sends, the memory besides arguments and results,
and whether the numbers equal those of one device. It fails if partir is wrong, or does not shard something as requested.
"""

from __future__ import annotations

import os
import platform
import sys
from importlib.metadata import version
from pathlib import Path
from typing import Any

os.environ.setdefault("XLA_FLAGS", "--xla_force_host_platform_device_count=8")
os.environ.setdefault("JAX_PLATFORMS", "cpu")
ROOT = Path(__file__).parent.parent
sys.path.insert(0, str(ROOT / "tests"))

import jax  # noqa: E402  (once the flags are set)

PAGE = ROOT / "docs" / "why.md"
TARGET = "tpu_v3"
"""The judge needs a target; the bytes do not depend on it."""

HEAD = """# Why not plain jit

Written by `python benchmarks/why.py`, {where}.

`jax.jit` over a mesh takes the shardings that the user asks for and leaves the rest to XLA's partitioner; its collectives can
only be seen in the compiled text. partir plans collectives, says why each is there, and writes the program of one device
itself. Below are programs that users reported, each over 8 virtual CPU devices, with the same shardings requested of both.
Collectives are read off both compiled programs; *sent* is what one device sends in a step if each collective sends as little
as possible (`partir.judge`); *temporary* is the compiler's figure for memory besides arguments and results; *numbers* compares
with one device. partir is not better in every row: where XLA shifts a window by permutes (the first rows of a batch, a
convolution in space), partir gathers, and says so.

{table}

{cases}
"""


def measure() -> list[tuple[Any, dict[str, Any], dict[str, Any], Any]]:
    """For each case: the case, the figures of plain jit's program and of partir's, and the `Partitioned`."""
    from asked import cases
    from jax.sharding import AxisType, NamedSharding

    import partir

    found = []
    for case in cases():
        mesh = jax.make_mesh(tuple(case.mesh.values()), tuple(case.mesh), axis_types=(AxisType.Auto,) * len(case.mesh))

        def named(spec: Any, mesh: Any = mesh) -> Any:
            return NamedSharding(mesh, spec)

        asked: dict[str, Any] = {"in_shardings": case.in_specs}
        if case.out_specs is not None:
            asked["out_shardings"] = case.out_specs
        theirs = {key: jax.tree.map(named, tree, is_leaf=_is_spec) for key, tree in asked.items()}
        with jax.set_mesh(mesh):
            expected = jax.jit(case.fun)(*case.args)
            plain = jax.jit(case.fun, **theirs).lower(*case.args).compile()
            placed = [jax.device_put(x, s) for x, s in zip(case.args, theirs["in_shardings"], strict=True)]
            plainly = read(plain, plain(*placed), expected)
        part = partir.jit(case.fun, mesh=mesh, schedule=[], **asked).trace(*case.args).partition()
        for wish, specs in ((case.in_specs, part.in_specs), (case.out_specs, part.out_specs)):
            assert wish is None or jax.tree.all(jax.tree.map(_is_laid, wish, specs, is_leaf=_is_spec)), (case.title, specs)
        found.append((case, plainly, read(part.lower().compile(), part(*case.args), expected), part))
    return found


def _is_spec(x: Any) -> bool:
    return isinstance(x, jax.sharding.PartitionSpec)


def _is_laid(wish: Any, specs: Any) -> bool:
    """Whether all specs of a subtree are the requested one."""
    return all(spec == wish for spec in jax.tree.leaves(specs, is_leaf=_is_spec))


def read(compiled: Any, results: Any, expected: Any) -> dict[str, Any]:
    """The figures of a compiled program: collectives by kind, bytes sent, temporary bytes, whether its results are right."""
    import numpy as np
    from hlo import collectives_in

    import partir

    pairs = zip(jax.tree.leaves(results), jax.tree.leaves(expected), strict=True)
    off = [float(np.max(np.abs(np.asarray(a) - np.asarray(b)), initial=0)) for a, b in pairs]
    largest = [float(np.max(np.abs(np.asarray(b)), initial=0)) for b in jax.tree.leaves(expected)]
    return {
        "collectives": collectives_in(compiled.as_text()),
        "sent": round(partir.judge(compiled, TARGET).communicated_bytes),
        "temporary": compiled.memory_analysis().temp_size_in_bytes,
        "right": all(a <= 1e-5 * max(b, 1) for a, b in zip(off, largest, strict=True)),
    }


def page(found: list[tuple[Any, dict[str, Any], dict[str, Any], Any]]) -> str:
    from record import table

    from partir.viz.report import bytes_text

    def cells(read: dict[str, Any]) -> tuple[str, ...]:
        counts = ", ".join(f"{n} {kind}" for kind, n in read["collectives"].items()) or "none"
        return counts, bytes_text(read["sent"]), bytes_text(read["temporary"]), "equal" if read["right"] else "**wrong**"

    rows = []
    texts = []
    for number, (case, plain, ours, part) in enumerate(found, 1):
        rows.append((f"{number}", case.title, "plain jit", *cells(plain)))
        rows.append(("", "", "partir", *cells(ours)))
        asked = f"`in_shardings={case.in_specs!r}`" + (f", `out_shardings={case.out_specs!r}`" if case.out_specs else "")
        mesh = " x ".join(f"{axis}={size}" for axis, size in case.mesh.items())
        said = "".join(f"\n- partir says: {line}" for line in part.replicated)
        texts.append(f"**{number}. {case.title}** ({case.source}; {mesh}, {asked}). {case.wanted}{said}")
    headings = ("", "program", "", "collectives", "sent", "temporary", "numbers")
    return HEAD.format(
        where=f"Python {platform.python_version()}, jax {version('jax')}",
        table=table(headings, rows),
        cases="\n\n".join(texts),
    )


def main() -> int:
    found = measure()
    PAGE.write_text(page(found))
    print(PAGE.read_text())
    return 0 if all(ours["right"] for _, _, ours, _ in found) else 1


if __name__ == "__main__":
    sys.exit(main())
