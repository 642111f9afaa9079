"""Runs the real compilers (libtpu's, XLA's for GPUs and CPUs) on a machine that has none of their devices.

A job (the device-local program, the shardings of arguments and results, a topology) goes to a child process as a file, and the
compiler's output comes back as files. So a compiler that hangs, aborts or fills stderr becomes an error message.
"""

from __future__ import annotations

import json
import math
import os
import re
import signal
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from partir.cost import registry as targets
from partir.cost.target import Target
from partir.errors import CompilerError, MemoryLimitError, MeshError, error_text
from partir.mesh import Mesh
from partir.program import Leaf, Program
from partir.runtime.emit import Local
from partir.sharding.layout import Layout, local_shape, spec_of
from partir.verify.gpus import GPUS

TPU_CORES = {"v2": 2, "v3": 2, "v4": 1, "v5e": 1, "v5p": 1, "v6e": 1}
"""JAX devices per chip: on v2 and v3 each of the two cores is a device, on v4 and v5p both cores are one ("megacore")."""

EXAMPLES = "tpu:v5e:2x4, tpu:v4:2x2x2, gpu:h100:8, gpu:h100:2x8 (nodes x GPUs), cpu:8"
TIMEOUT_SECONDS = 1800.0


@dataclass(frozen=True)
class Topology:
    """Devices to compile for: a platform as JAX names it ("tpu", "cuda", "cpu"), a kind of device, and the sizes of the torus
    (in chips), or nodes and GPUs per node.

    >>> Topology.parse("tpu:v3:2x2").devices
    8
    >>> Topology.parse("gpu:h100:2x8").target
    Target('h100': 989 TFLOP/s, 80 GB)
    """

    platform: str
    kind: str
    shape: tuple[int, ...]

    @classmethod
    def parse(cls, text: str) -> Topology:
        """Read `tpu:KIND:2x4`, `gpu:KIND:8`, `gpu:KIND:NODESxGPUS` or `cpu:N`. Raises MeshError for anything else."""
        parts = text.split(":")
        if len(parts) == 2 and parts[0] == "cpu":
            parts.insert(1, "cpu")
        kinds: dict[str, Sequence[str]] = {"tpu": list(TPU_CORES), "gpu": list(GPUS), "cpu": ["cpu"]}
        if len(parts) != 3 or parts[0] not in kinds or not re.fullmatch(r"[1-9]\d*(x[1-9]\d*)*", parts[2]):
            raise _unreadable(text, "it is not PLATFORM:KIND:SIZES")
        platform, kind, sizes = parts
        if kind not in kinds[platform]:
            raise _unreadable(text, f"{platform} has {', '.join(kinds[platform])}")
        shape = tuple(int(size) for size in sizes.split("x"))
        if len(shape) > {"tpu": 3, "gpu": 2, "cpu": 1}[platform]:
            raise _unreadable(text, f"{len(shape)} sizes are too many for {platform}")
        return cls({"gpu": "cuda"}.get(platform, platform), kind, shape)

    @property
    def devices(self) -> int:
        """The number of JAX devices."""
        return math.prod(self.shape) * (TPU_CORES[self.kind] if self.platform == "tpu" else 1)

    @property
    def target(self) -> Target:
        """The target of this kind of device, with the torus or the node size of this topology."""
        if self.platform == "tpu":
            return replace(targets.get(f"tpu_{self.kind}"), torus=self.shape)
        machine = targets.get(self.kind)
        return replace(machine, node_devices=self.shape[-1]) if self.platform == "cuda" else machine

    @property
    def options(self) -> dict[str, Any]:
        """The arguments of `jax.experimental.topologies.get_topology_desc` besides the platform."""
        if self.platform == "tpu":
            name = f"{self.kind}:{'x'.join(map(str, self.shape))}"
            return {"topology_name": name} | ({"chip_config_name": "megacore"} if self.kind == "v4" else {})
        if self.platform == "cuda":
            nodes, gpus = self.shape if len(self.shape) == 2 else (1, self.shape[0])
            described = GPUS[self.kind].describe(self.target)
            return {"topology_name": self.kind, "target_config": described, "topology": f"1x{nodes}x{gpus}"}
        return {}

    @property
    def compiler_options(self) -> dict[str, Any]:
        """Options that keep the compiler from looking for a device: GPU kernels are chosen by rules, not by timing them."""
        return {"xla_gpu_autotune_level": 0} if self.platform == "cuda" else {}

    def check(self, mesh: Mesh) -> None:
        """Raise MeshError unless the mesh has as many devices as this topology, CompilerError without its compiler."""
        if mesh.size != self.devices:
            raise MeshError(
                error_text(
                    f"the mesh {', '.join(f'{name}={size}' for name, size in mesh.axes)} does not fill {self}",
                    why=f"the mesh has {mesh.size} devices, the topology {self.devices}",
                    hint=f"a topology of {mesh.size} devices, or another mesh; topologies are written {EXAMPLES}",
                )
            )
        if self.platform == "cpu":
            return
        extra = "tpu" if self.platform == "tpu" else "gpu"
        why = _lacks_libtpu() if self.platform == "tpu" else _lacks_plugin()
        if why:
            raise CompilerError(
                error_text(
                    f"cannot compile for {self}",
                    why=why,
                    hint=f"pip install 'partir[{extra}]' (in a clone: '.[{extra}]'); no {extra.upper()} is needed to compile",
                )
            )

    def __str__(self) -> str:
        sizes = "x".join(map(str, self.shape))
        return (
            f"cpu:{sizes}" if self.platform == "cpu" else f"{'gpu' if self.platform == 'cuda' else 'tpu'}:{self.kind}:{sizes}"
        )


def _lacks_libtpu() -> str:
    return "" if find_spec("libtpu") else "its compiler is not installed: there is no libtpu in this Python environment"


def _lacks_plugin() -> str:
    """Why there is no usable GPU plugin, "" if there is one. JAX loads only a plugin of jaxlib's own version."""
    plugins = [name for name in ("jax-cuda12-plugin", "jax-cuda13-plugin") if find_spec(name.replace("-", "_"))]
    if not plugins:
        return "its compiler is not installed: there is no jax-cuda12-plugin in this Python environment"
    jaxlib = version("jaxlib")
    others = [f"{name} {version(name)}" for name in plugins]
    if not any(version(name) == jaxlib for name in plugins):
        return f"{', '.join(others)} does not go with jaxlib {jaxlib}"
    return ""


def _unreadable(text: str, why: str) -> MeshError:
    return MeshError(error_text(f'cannot read the topology "{text}"', why=why, hint=EXAMPLES))


@dataclass(frozen=True)
class Memory:
    """Bytes on one device, as the compiler reports them. `alias` are bytes of results that reuse an argument's buffer."""

    argument: int
    output: int
    alias: int
    temp: int

    @property
    def peak(self) -> int:
        """The bytes that must fit: arguments, temporaries, and results that reuse no argument's buffer."""
        return self.argument + self.temp + self.output - self.alias


@dataclass(frozen=True)
class Compilation:
    """What a compiler made of one program: the scheduled HLO text, the memory, and (if it has one) its own estimate of time."""

    text: str
    memory: Memory
    optimal_seconds: float | None = None


def job_of(
    program: Program,
    local: Local,
    mesh: Mesh,
    arguments: Sequence[Layout],
    results: Sequence[Layout],
    compiler_options: Mapping[str, Any],
) -> dict[str, Any]:
    """A lowered program as plain data for a child process. Raises CompilerError for a program with host callbacks."""
    if getattr(program.host, "callbacks", ()):
        raise CompilerError(
            error_text(
                f"cannot compile {program.name} in another process",
                why=f"it calls back into this one ({len(program.host.callbacks)} host callbacks)",
                hint="verify it without jax.debug.print and callbacks; part.lower().compile() compiles here",
            )
        )

    def record(leaf: Leaf, layout: Layout) -> dict[str, Any]:
        layout = layout[: len(leaf.shape)]
        return {
            "shape": leaf.shape,
            "local": local_shape(layout, mesh.axes) if layout else (),
            "dtype": leaf.dtype,
            "donated": leaf.donated,
            "spec": spec_of(layout),
            "memory": leaf.memory,
        }

    signature = program.signature
    return {
        "name": program.name,
        "text": local.text,
        "channels": local.channels,
        "mesh": mesh.axes,
        "arguments": [record(leaf, layout) for leaf, layout in zip(signature.arguments, arguments, strict=True)],
        "results": [record(leaf, layout) for leaf, layout in zip(signature.results, results, strict=True)],
        "compiler_options": dict(compiler_options),
    }


def compile_job(job: Mapping[str, Any], topology: Topology, timeout_seconds: float = TIMEOUT_SECONDS) -> Compilation:
    """Compile a job in a child process.

    Raises:
        MeshError: for a mesh with another number of devices than the topology.
        MemoryLimitError: if the compiler reports that the program does not fit into a device's memory.
        CompilerError: for a compiler that is missing, refuses the program, aborts, or takes longer than `timeout_seconds`.
    """
    topology.check(Mesh([(name, size) for name, size in job["mesh"]]))
    job = {
        **job,
        "topology": {"platform": topology.platform, "options": topology.options},
        "compiler_options": topology.compiler_options | dict(job["compiler_options"]),
    }
    with tempfile.TemporaryDirectory(prefix="partir-compile-") as folder:
        file = Path(folder, "job.json")
        file.write_text(json.dumps(job))
        code, noise = _run([str(file), folder], topology, timeout_seconds)
        refused = Path(folder, "refused.txt")
        if refused.exists():
            raise _refusal(topology, job["name"], refused.read_text())
        if code != 0:
            raise _failure(topology, job["name"], code, noise, timeout_seconds)
        said = json.loads(Path(folder, "said.json").read_text())
        text = Path(folder, "program.hlo").read_text()
    return Compilation(text, Memory(**said["memory"]), said["optimal_seconds"])


def _run(arguments: list[str], topology: Topology, timeout_seconds: float) -> tuple[int | None, str]:
    """Run the child. Returns its exit code (None: it took too long and was killed) and what it printed."""
    command = [sys.executable, "-m", "partir.verify.compile_child", *arguments]
    with tempfile.TemporaryFile("w+", errors="replace") as noise:
        child = subprocess.Popen(command, stdout=noise, stderr=noise, stdin=subprocess.DEVNULL, env=_environment(topology))
        try:
            code = child.wait(timeout_seconds)
        except subprocess.TimeoutExpired:
            code = None
        finally:
            child.kill()
            child.wait()
        noise.seek(0)
        return code, noise.read()


def _environment(topology: Topology) -> dict[str, str]:
    """The child's environment: JAX looks for no device, and several children may load libtpu at the same time."""
    root = str(Path(__file__).parents[2])
    flags = re.sub(r"--xla_force_host_platform_device_count=\S+", "", os.environ.get("XLA_FLAGS", ""))
    if topology.platform == "cpu":
        flags += f" --xla_force_host_platform_device_count={topology.devices}"
    else:
        flags = re.sub(r"--xla_cpu_\S+", "", flags)  # libtpu aborts on a flag that it does not know
    return (
        os.environ
        | _ptxas()
        | {
            "JAX_PLATFORMS": "cpu",
            "XLA_FLAGS": flags.strip(),
            "TPU_SKIP_MDS_QUERY": "1",
            "ALLOW_MULTIPLE_LIBTPU_LOAD": "1",
            "TPU_LOG_DIR": "disabled",
            "PYTHONPATH": os.pathsep.join(filter(None, [root, os.environ.get("PYTHONPATH", "")])),
        }
    )


def _ptxas() -> dict[str, str]:
    """The environment variable by which XLA finds ptxas: that of the installed package, unless the user has set CUDA_ROOT.

    The machine's own CUDA may be of another version, or missing.
    """
    if "CUDA_ROOT" in os.environ:
        return {}
    spec = find_spec("nvidia")
    places = [Path(root, "cuda_nvcc") for root in (spec.submodule_search_locations if spec else None) or ()]
    return next(({"CUDA_ROOT": str(place)} for place in places if (place / "bin" / "ptxas").is_file()), {})


def _refusal(topology: Topology, name: str, said: str) -> CompilerError:
    """The error for an exception that the compiler raised."""
    first = " ".join(next((line for line in said.splitlines() if line.strip()), said).split())
    if "RESOURCE_EXHAUSTED" in said:
        return MemoryLimitError(
            error_text(
                f"{name} does not fit into the memory of {topology}",
                why=f"its compiler says: {_shortened(first.split('RESOURCE_EXHAUSTED:')[-1].strip())}",
                hint="more devices, ZeRO, or recomputation by jax.checkpoint",
            )
        )
    return CompilerError(
        error_text(
            f"{topology} cannot be compiled for"
            if "topology" in first.lower()
            else f"the compiler of {topology} refuses {name}",
            why=_shortened(first),
            hint="" if "topology" not in first.lower() else f"topologies are written {EXAMPLES}",
        )
    )


def _failure(topology: Topology, name: str, code: int | None, noise: str, timeout_seconds: float) -> CompilerError:
    """The error for a child that wrote no result: it was killed after the timeout, aborted, or exited."""
    if code is None:
        why = f"it was still compiling after {timeout_seconds:g} seconds"
    elif code < 0:
        why = f"it was ended by {signal.Signals(-code).name}"
    else:
        why = f"its process ended with exit code {code}"
    lines = [line.strip() for line in noise.splitlines() if line.strip()]
    said = next(
        (line for line in reversed(lines) if re.search(r"error|fatal|check failed", line, re.I)), lines[-1] if lines else ""
    )
    return CompilerError(
        error_text(
            f"the compiler of {topology} did not compile {name}",
            where=f"its last words: {_shortened(said)}" if said else "",
            why=why,
            hint="a longer timeout, or fewer layers" if code is None else "fewer layers, or another topology",
        )
    )


def _shortened(text: str, limit: int = 300) -> str:
    return text if len(text) <= limit else f"{text[: limit - 3]}..."
