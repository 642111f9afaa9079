"""Found strategies against XLA's auto-sharding, which JAX could reach until 0.10.0; writes docs/benchmarks.md.

    python benchmarks/peers/against_auto_sharding.py                 what has no result yet, then the table
    python benchmarks/peers/against_auto_sharding.py --layers 2

Needs `partir[tpu]`, and Python 3.11 for the peer, whose environment (JAX 0.6.2) it makes itself. Everything is compiled for the
same TPU in processes of their own; what the compilers said is kept in build/peers. Search prices with its estimate alone. What it
found is compiled twice: by partir with the newest compiler, and the same device-local program by the peer's compiler, since
`optimal_seconds` of two compilers cannot be compared.
"""

from __future__ import annotations

import argparse
import gzip
import json
import os
import subprocess
import sys
import time
from functools import cache
from pathlib import Path
from typing import Any

os.environ.setdefault("JAX_PLATFORMS", "cpu")
HERE = Path(__file__).parent
ROOT = HERE.parents[1]
sys.path.insert(0, str(HERE.parent))

RESULTS = ROOT / "build" / "peers"
PEER = RESULTS / "venv" / "bin" / "python"
PEER_PYTHON = "python3.11"
PACKAGES = ("jax[tpu]==0.6.2", "dm-haiku==0.0.17", "optax==0.2.8")
TOPOLOGY = "tpu:v3:2x2"
MESH = {"data": 4, "model": 2}
SIZES = {"d_model": 1024, "heads": 16, "vocab": 32000, "seq": 512, "batch": 32, "positions": "none"}
LAYERS = (2, 4, 8)
FSDP = "DataParallel('data'), DataParallel('model'), ZeRO('data', stage=3), ZeRO('model', stage=3)"
QUIET = {"TPU_SKIP_MDS_QUERY": "1", "ALLOW_MULTIPLE_LIBTPU_LOAD": "1", "TPU_LOG_DIR": "disabled"}
"""No TPU is looked for, and libtpu may be loaded while another process has it."""

HOWS = {
    "auto": "XLA's auto-sharding",
    "plain": "data parallel",
    "given": "found by partir",
    "found": "found by partir",
    "expert": "FSDP by hand",
}
"""What is compiled; the first three by the peer's compiler."""
PEERS = ("auto", "plain", "given")


def settings(layers: int) -> dict[str, Any]:
    """Of `partir.zoo.gpt`."""
    return {"layers": layers, **SIZES}


def file_of(how: str, layers: int) -> Path:
    return RESULTS / f"{how}_{layers}.json.gz"


def program_of(layers: int) -> Path:
    """The device-local program that search came to, for the peer's compiler."""
    return RESULTS / f"program_{layers}.json"


# ---- compiling


def make_peer() -> None:
    """The peer's environment, if there is none yet."""
    done = RESULTS / "venv" / "done"
    if done.exists():
        return
    RESULTS.mkdir(parents=True, exist_ok=True)
    subprocess.run([PEER_PYTHON, "-m", "venv", RESULTS / "venv"], check=True)
    subprocess.run([PEER, "-m", "pip", "install", "-qq", "--disable-pip-version-check", *PACKAGES], check=True)
    done.touch()


def compiled(how: str, layers: int) -> dict[str, Any]:
    """What a compiler said: from the file, else from a child that writes it."""
    file = file_of(how, layers)
    if not file.exists():
        print(f"... {layers} layers, {how}", file=sys.stderr, flush=True)
        making = file.with_suffix(f".{os.getpid()}")
        if how in PEERS:
            make_peer()
            command = [PEER, HERE / "auto_sharding.py", json.dumps(settings(layers)), how, making, program_of(layers)]
        else:
            command = [sys.executable, __file__, "--one", how, str(layers), making]
        log = RESULTS / f"{how}_{layers}.log"
        with log.open("w") as noise:
            code = subprocess.run(command, stdout=noise, stderr=noise, check=False, env=os.environ | QUIET).returncode
        if code != 0:
            sys.exit(f"{how} with {layers} layers ended with exit code {code}: see {log}")
        making.replace(file)
    return json.loads(gzip.decompress(file.read_bytes()))


def one(how: str, layers: int, out: Path) -> None:
    """A child with partir in it: search and compile what it found, or compile the expert's shardings."""
    import partir

    example = partir.zoo.gpt(**settings(layers))
    mesh = partir.Mesh(MESH)
    traced = partir.jit(example.fun, mesh=mesh, donate_argnums=example.donate_argnums).trace(*example.args)
    record = found(traced, layers) if how == "found" else by_hand(traced, example)
    out.write_bytes(gzip.compress(json.dumps(record).encode()))


def found(traced: Any, layers: int) -> dict[str, Any]:
    """Search, compile the strategy that it thinks the best, and leave its program for the peer's compiler."""
    import jax

    from partir.runtime.compilers import Topology
    from partir.tactics import Search

    target = Topology.parse(TOPOLOGY).target
    search = Search(tuple(MESH), target=target)
    start, busy = time.perf_counter(), time.process_time()
    part = traced.partition([search])
    seconds, busy = time.perf_counter() - start, time.process_time() - busy
    there = traced.imported_for("tpu", part.mesh, target).replay(part.strategy)
    ins, outs = ([tuple(spec) for spec in jax.tree.leaves(specs, is_leaf=_is_spec)] for specs in (there.in_specs, there.out_specs))
    program_of(layers).write_text(json.dumps({"text": there.stablehlo(), "ins": ins, "outs": outs}))
    assert search.result is not None
    state = next(s for s in search.result.candidates if [a for d in s for a in d.actions] == list(part.strategy.actions))
    return {
        **_said(part.verify(TOPOLOGY).compilation),
        "seconds": seconds,
        "processor_seconds": busy,
        "evaluations": search.result.evaluations,
        "decisions": [str(decision) for decision in state],
        "estimate": part.estimate.step_seconds,
    }


def _is_spec(leaf: Any) -> bool:
    from jax.sharding import PartitionSpec

    return isinstance(leaf, PartitionSpec)


def by_hand(traced: Any, example: Any) -> dict[str, Any]:
    """Plain `jit` with FSDP's shardings as `NamedSharding`s: the best expert of these programs."""
    import jax
    from jax.experimental import topologies

    from partir.cli.inputs import schedule_of
    from partir.runtime.compile_child import mesh_of
    from partir.runtime.compilers import Compilation, Memory, Topology

    part = traced.partition(schedule_of(FSDP))
    devices = topologies.get_topology_desc(platform="tpu", **Topology.parse(TOPOLOGY).options).devices
    mesh = mesh_of(list(MESH.items()), list(devices))
    ins, outs = jax.tree.map(lambda s: jax.sharding.NamedSharding(mesh, s), (part.in_specs, part.out_specs), is_leaf=_is_spec)
    step = jax.jit(example.fun, in_shardings=ins, out_shardings=outs, donate_argnums=example.donate_argnums)
    compiled = step.lower(*example.args).compile()
    figures = compiled.memory_analysis()
    memory = Memory(*(int(getattr(figures, f"{name}_size_in_bytes")) for name in ("argument", "output", "alias", "temp")))
    return _said(Compilation(compiled.as_text(), memory, compiled.cost_analysis()["optimal_seconds"]))


def _said(compilation: Any) -> dict[str, Any]:
    from importlib.metadata import version

    return {
        "text": compilation.text,
        "memory": vars(compilation.memory),
        "optimal_seconds": compilation.optimal_seconds,
        "compiler": f"jax {version('jax')}, libtpu {version('libtpu')}",
    }
