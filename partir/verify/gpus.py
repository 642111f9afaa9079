"""Describes GPUs to XLA's compiler, so that it compiles for a GPU that this machine does not have.

The figures here and those of a target make an XLA `GpuTargetConfigProto` in text form. Sources: for the number of
multiprocessors and the L2 cache NVIDIA's whitepapers on V100 (2017), A100 (2020) and H100 (2022) and the datasheets of H200 and
B200; for the units and limits of a multiprocessor the "CUDA C++ Programming Guide", table "Technical Specifications per Compute
Capability".
"""

from __future__ import annotations

from dataclasses import dataclass

from partir.cost.target import Target

KIB, MIB = 1024, 1024**2


@dataclass(frozen=True)
class Gpu:
    """One kind of GPU; `describe` adds what all kinds have in common."""

    name: str
    capability: tuple[int, int]
    multiprocessors: int
    fp32_lanes: int
    """FP32 units per multiprocessor."""
    l2_bytes: int
    shared_bytes: int
    """Shared memory per multiprocessor."""

    def describe(self, target: Target) -> str:
        """The description that XLA reads; memory size, bandwidth and clock are the target's.

        From compute capability 8.0 on, CUDA reserves 1 KiB of the shared memory for each block.
        """
        major, minor = self.capability
        return f"""
gpu_device_info {{
  threads_per_block_limit: 1024
  threads_per_warp: 32
  shared_memory_per_block: {48 * KIB}
  shared_memory_per_core: {self.shared_bytes}
  shared_memory_per_block_optin: {self.shared_bytes - (KIB if major >= 8 else 0)}
  threads_per_core_limit: 2048
  core_count: {self.multiprocessors}
  fpus_per_core: {self.fp32_lanes}
  block_dim_limit_x: 2147483647
  block_dim_limit_y: 65535
  block_dim_limit_z: 65535
  registers_per_core_limit: 65536
  registers_per_block_limit: 65536
  memory_bandwidth: {int(target.hbm_bytes_per_second)}
  l2_cache_size: {self.l2_bytes}
  clock_rate_ghz: {target.clock_hertz / 1e9}
  device_memory_size: {target.hbm_bytes}
  cuda_compute_capability {{ major: {major} minor: {minor} }}
}}
platform_name: "CUDA"
dnn_version_info {{ major: 9 minor: 8 }}
device_description_str: "{self.name}"
"""


GPUS = {
    "v100": Gpu("Tesla V100-SXM2-32GB", (7, 0), 80, 64, 6 * MIB, 96 * KIB),
    "a100": Gpu("NVIDIA A100-SXM4-80GB", (8, 0), 108, 64, 40 * MIB, 164 * KIB),
    "h100": Gpu("NVIDIA H100 80GB HBM3", (9, 0), 132, 128, 50 * MIB, 228 * KIB),
    "h200": Gpu("NVIDIA H200", (9, 0), 132, 128, 50 * MIB, 228 * KIB),
    "b200": Gpu("NVIDIA B200", (10, 0), 148, 128, 126 * MIB, 228 * KIB),
}
"""The kinds of GPU, by the name of their target."""
