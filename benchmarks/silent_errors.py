"""Counts how often plain jit with sharded arguments silently computes wrong numbers, and partir; writes docs/silent_errors.md.

The programs scatter rows whose number does not divide, or compute gradients of convolutions. Each runs on meshes of eight
devices with many shardings of its arguments, and is compared with one device. The script fails if partir is wrong once.
"""

from __future__ import annotations

import os
import platform
import sys
from collections import Counter
from importlib.metadata import version
from pathlib import Path
from typing import Any

# This compiles much and computes little. LLVM's optimizations take half of the time, and run after XLA's partitioner.
os.environ.setdefault("XLA_FLAGS", "--xla_force_host_platform_device_count=8 --xla_backend_optimization_level=0")
os.environ.setdefault("JAX_PLATFORMS", "cpu")
ROOT = Path(__file__).parent.parent
sys.path.insert(0, str(ROOT / "tests"))

PAGE = ROOT / "docs" / "silent_errors.md"
EACH = 8
"""How many shardings of one program on one mesh are tried; they are taken evenly from all possible ones."""

HEAD = """# Silent errors

Written by `python benchmarks/silent_errors.py`, {where}.

`jax.jit` over a mesh with sharded arguments lets XLA partition every op. For some ops XLA does so wrongly, without an error.
These programs show it: scatters, segment sums and gradients of embeddings whose number of rows does not divide (`t[1:]` of 16
rows); gradients of convolutions with respect to kernel and images, strided and not; the same per example, under `vmap`. Each
runs on 8 virtual CPU devices with many shardings of its arguments (`in_shardings`), once by plain jit and once by partir, and
its answer is compared with that of one device. It is *wrong* if it is off by more than 1e-4 of the largest entry; inputs are
small whole numbers.

{table}

Of {total} answers plain jit has {jit} wrong, partir {ours}. partir writes the program of one device and its collectives itself,
so that XLA has nothing left to partition. Shardings that plain jit gets wrong, up to {shown} of each family:

{examples}
"""
SHOWN = 3


def spread(items: list[Any], count: int) -> list[Any]:
    """At most `count` of the items, evenly spaced."""
    return items if len(items) <= count else [items[k * len(items) // count] for k in range(count)]


def measure() -> tuple[Counter[tuple[str, str, str]], dict[str, list[str]]]:
    """Counts by (family, mesh, what), where `what` is "tried", or "jit" or "partir" for wrong answers of these; and by family
    the shardings for which plain jit is wrong."""
    import jax
    from equal import MESHES
    from jax.sharding import AxisType, NamedSharding
    from sweep import PROGRAMS, is_wrong, specs_of

    import partir

    counts: Counter[tuple[str, str, str]] = Counter()
    wrong: dict[str, list[str]] = {}
    for name, (family, (fun, args)) in PROGRAMS.items():
        expected = jax.jit(fun)(*args)
        for mesh_name, (shape, axes) in MESHES.items():
            mesh = jax.make_mesh(shape, axes, axis_types=(AxisType.Auto,) * len(axes))
            for specs in spread(list(specs_of(args, dict(zip(axes, shape, strict=True)))), EACH):
                shardings = tuple(NamedSharding(mesh, spec) for spec in specs)
                plain = jax.jit(fun, in_shardings=shardings)(*args)
                step = partir.jit(fun, mesh=mesh, in_shardings=specs, schedule=[])
                counts[family, mesh_name, "tried"] += 1
                if is_wrong(plain, expected):
                    counts[family, mesh_name, "jit"] += 1
                    said = ", ".join(f"P({', '.join(map(repr, spec))})" for spec in specs)
                    wrong.setdefault(family, []).append(f"`{name}` on {mesh_name}: {said}")
                if said := complaint(step, args, expected):
                    counts[family, mesh_name, "partir"] += 1
                    print(f"partir: {name} on {mesh_name} with {specs}: {said}", file=sys.stderr)
        print(f"{name}: {counts.total()} so far", file=sys.stderr)
        jax.clear_caches()
    return counts, wrong


def complaint(step: Any, args: tuple[Any, ...], expected: Any) -> str:
    """What is wrong with partir's answer, "" if nothing is. An error counts as a wrong answer."""
    from sweep import is_wrong

    from partir.errors import PartirError

    try:
        return "wrong numbers" if is_wrong(step(*args), expected) else ""
    except PartirError as error:
        return str(error)


def main() -> int:
    from record import table

    counts, wrong = measure()
    families, meshes = (list(dict.fromkeys(key[k] for key in counts)) for k in (0, 1))

    def cell(family: str, mesh: str) -> str:
        tried, jit, ours = (counts[family, mesh, what] for what in ("tried", "jit", "partir"))
        return f"{tried}: {jit} / {ours}"

    headings = ("answers: wrong by plain jit / by partir", *(f"mesh {mesh.replace('x', ' x ')}" for mesh in meshes))
    text = table(headings, [(family, *(cell(family, mesh) for mesh in meshes)) for family in families])
    total, jit, ours = (sum(n for (_, _, what), n in counts.items() if what == own) for own in ("tried", "jit", "partir"))
    examples = [f"- {line}" for family in wrong for line in spread(wrong[family], SHOWN)]
    where = f"Python {platform.python_version()}, jax {version('jax')}"
    PAGE.write_text(
        HEAD.format(
            where=where, table=text, total=total, jit=jit, ours=ours, shown=SHOWN, examples="\n".join(examples) or "- none"
        )
    )
    print(text)
    return 1 if ours else 0


if __name__ == "__main__":
    sys.exit(main())
