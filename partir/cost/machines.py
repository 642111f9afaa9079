"""The machines partir knows: a record for each, every number with its source. Peaks are dense, rates are bytes one way."""

from __future__ import annotations

from partir.cost.target import GIB, Efficiency, Target, Wires

_CLOUD = "https://cloud.google.com/tpu/docs"
_CACM = "Jouppi et al. 2020, A Domain-Specific Supercomputer for Training DNNs, CACM 63(7), table 3"
_V4 = "Jouppi et al. 2023, TPU v4, ISCA, table 4"
_BOOK = "Austin et al. 2025, How to Scale Your Model (jax-ml.github.io/scaling-book), chapter 2"
_NCCL = "NVIDIA NCCL 2.28, src/graph/tuning.cc, hwLatencies of the ring, protocol LL128"
_HOP = f"{_BOOK}: about 1 microsecond a hop"
_LIBTPU = "libtpu 0.0.52: the collectives that it starts and ends in two places of what it compiles"
_REDUCES = "libtpu 0.0.52: 18.5 cycles of a core for each register of 1024 numbers that a loop reduces"

# In which dtype sums over devices of narrow values are made: read off what compilers make of an all_reduce and a reduce_scatter
# (operands, results, the computation that adds), and for v5e off the code of the ring.
#
#   compiler                     bfloat16                                              float16
#   libtpu 0.0.52, v3 to v6e     sent as bf16; each device adds in f32 and rounds      sent and added as f16, two in a word
#   XLA for GPUs, jaxlib 0.12    bf16, handed to NCCL                                  f16, handed to NCCL
#   XLA for CPU, jaxlib 0.10,    converted to f32 before, and back after               sent and added as f16
#     0.12
#
# None gives sums in f32 for the bytes of bf16: for an all_reduce of bf16 that adds in f32 libtpu sends f32 around its ring
# (twice the granules), and XLA for GPUs hands bf16 to NCCL all the same. So where nothing is asked, programs stay as they are.
_SUMS_TPU = "libtpu 0.0.52, compiled for v3, v4, v5e, v5p and v6e: sums of bf16 and of f16 stay what they are"
_SUMS_GPU = "XLA of jaxlib 0.12.0, compiled for V100, A100, H100 and B200: sums of bf16 and of f16 go to NCCL as they are"
_SUMS_CPU = (
    "XLA of jaxlib 0.10.2 and 0.12.0 for CPU: its pass all-reduce-promotion makes sums of bf16 in f32, those of f16 in f16"
)
_DCN = f"{_BOOK}: data centre network between slices; latency of the order of 10 microseconds taken"


def _reaches(matrix: float, vector: float, memory: float, overhead: float, kind: str, instead: str = "") -> Efficiency:
    """What libtpu's cycles say of a TPU; of one that was not asked, those of the machine that is most like it."""
    taken = f", taken for {instead}" if instead else ""
    fitted_on = f"the cycles that libtpu 0.0.52 gives for the {kind} programs of docs/accuracy.md{taken}"
    return Efficiency(matrix, vector, memory, overhead_seconds=overhead, fitted_on=fitted_on)


def _tpu(
    name: str,
    *,
    bf16: float,
    int8: float | None,
    vector: float,
    hbm: int,
    bandwidth: float,
    link: float,
    dims: int,
    wraps_from: int,
    node: int,
    clock: float,
    cores: int,
    kinds: tuple[str, ...],
    far: float,
    reaches: Efficiency,
    sources: dict[str, str],
    unit: int = 128,
    on_chip: int | None = None,
    device_cores: int = 1,
    overlaps: tuple[str, ...] = ("all_gather", "collective_permute"),
) -> Target:
    """A TPU: f32 products run on the bf16 units, in as many passes as their precision asks for."""
    return Target(
        name,
        "tpu",
        {"bf16": bf16, "f32": bf16, "f16": bf16, "f64": bf16 / 64, "i8": int8 or bf16},
        vector,
        hbm,
        bandwidth,
        Wires("torus", link, 1e-6, dims, wraps_from),
        node,
        Wires("switch", far, 1e-5),
        cores,
        clock,
        unit,
        on_chip,
        device_cores * clock * 1024 / 18.5,
        overlaps=overlaps,
        scatters_by_all_reduce=True,
        efficiency=reaches,
        device_kinds=kinds,
        sources={
            "far": _DCN,
            "overlaps": _LIBTPU,
            "scatters_by_all_reduce": "libtpu 0.0.52, which was asked for 19 slices of v2, v3, v4, v5e and v6e",
            "reduced_per_second": _REDUCES,
            "sums_as": _SUMS_TPU,
            **sources,
        },
    )


def _gpu(
    name: str,
    *,
    rates: dict[str, float],
    vector: float,
    hbm: int,
    bandwidth: float,
    nvlink: float,
    nic: float,
    clock: float,
    kinds: tuple[str, ...],
    sheet: str,
    system: str,
) -> Target:
    """A GPU in its vendor's system of eight: NVLink within, one InfiniBand port for each outside."""
    return Target(
        name,
        "gpu",
        rates,
        vector,
        hbm,
        bandwidth,
        Wires("switch", nvlink, 1.9e-6),
        8,
        Wires("switch", nic, 4e-6),
        1,
        clock,
        device_kinds=kinds,
        sources={
            "flops_per_second": sheet,
            "vector_flops_per_second": f"{sheet}: FP32 outside the tensor cores",
            "hbm_bytes": sheet,
            "hbm_bytes_per_second": sheet,
            "clock_hertz": f"{sheet}: boost clock",
            "near": f"{sheet}: NVLink, half of the total for one direction; latency: {_NCCL}, NVLink",
            "far": f"{system}; latency: {_NCCL}, network",
            "node_devices": system,
            "devices_per_chip": sheet,
            "sums_as": _SUMS_GPU,
        },
    )


TPU_V2 = _tpu(
    "tpu_v2",
    bf16=23e12,
    int8=None,
    vector=1024 * 2 * 0.7e9,
    hbm=8 * GIB,
    bandwidth=350e9,
    link=496e9 / 8,
    dims=2,
    wraps_from=16,
    node=512,
    clock=0.7e9,
    cores=2,
    kinds=("TPU v2",),
    far=100e9 / 8 / 8,
    reaches=_reaches(0.984, 0.299, 0.812, 1.0e-6, "v3", "v2"),
    overlaps=(),
    sources={
        "flops_per_second": f"{_CACM}: 46 TFLOP/s a chip of two cores",
        "vector_flops_per_second": f"{_CACM}: 128 lanes of 8, two ALUs (they issue two of them a cycle), at 700 MHz",
        "hbm_bytes": f"{_CACM}: 16 GiB a chip of two cores",
        "hbm_bytes_per_second": f"{_CACM}: 700 GB/s a chip of two cores",
        "near": f"{_CACM}: four links of 496 Gbit/s, 2D torus; {_HOP}",
        "node_devices": f"{_CACM}: a pod of 256 chips",
        "clock_hertz": f"{_CACM}: 700 MHz",
        "devices_per_chip": f"{_CACM}: two cores",
    },
)

TPU_V3 = _tpu(
    "tpu_v3",
    bf16=61.5e12,
    int8=None,
    vector=1024 * 2 * 0.94e9,
    hbm=16 * GIB,
    bandwidth=450e9,
    link=656e9 / 8,
    dims=2,
    wraps_from=16,
    node=2048,
    clock=0.94e9,
    cores=2,
    kinds=("TPU v3",),
    far=100e9 / 8 / 8,
    reaches=_reaches(0.984, 0.299, 0.812, 1.0e-6, "v3"),
    overlaps=(),
    sources={
        "flops_per_second": f"{_CACM}: 123 TFLOP/s a chip of two cores",
        "vector_flops_per_second": f"{_CACM}: 128 lanes of 8, two ALUs, at 940 MHz",
        "hbm_bytes": f"{_CACM}: 32 GiB a chip of two cores",
        "hbm_bytes_per_second": f"{_CACM}: 900 GB/s a chip of two cores",
        "near": f"{_CACM}: four links of 656 Gbit/s, 2D torus; {_HOP}",
        "node_devices": f"{_CACM}: a pod of 1024 chips",
        "clock_hertz": f"{_CACM}: 940 MHz",
        "devices_per_chip": f"{_CACM}: two cores",
    },
)

TPU_V4 = _tpu(
    "tpu_v4",
    bf16=275e12,
    int8=275e12,
    vector=2 * 1024 * 2 * 1.05e9,
    hbm=32 * GIB,
    bandwidth=1200e9,
    link=50e9,
    dims=3,
    wraps_from=4,
    node=4096,
    clock=1.05e9,
    cores=1,
    kinds=("TPU v4",),
    far=50e9 / 8,
    reaches=_reaches(0.813, 0.525, 0.606, 1.0e-6, "v4"),
    on_chip=128 * 2**20,
    device_cores=2,
    overlaps=(),
    sources={
        "on_chip_bytes": f"{_V4}: 128 MiB of common memory (CMEM)",
        "flops_per_second": f"{_V4}: 275 TFLOP/s",
        "vector_flops_per_second": f"{_V4}: two cores of 128 lanes of 16 ALUs, at 1050 MHz",
        "hbm_bytes": f"{_V4}: 32 GiB",
        "hbm_bytes_per_second": f"{_V4}: 1200 GB/s",
        "near": f"{_V4}: six links of 50 GB/s, 3D torus, closed from cubes of 4; {_HOP}",
        "node_devices": f"{_V4}: 4096 chips",
        "clock_hertz": f"{_V4}: 1050 MHz",
        "devices_per_chip": f"{_CLOUD}/v4: the two cores of a chip are one device",
    },
)

TPU_V5E = _tpu(
    "tpu_v5e",
    bf16=197e12,
    int8=393e12,
    vector=1024 * 4 * 1.5e9,
    hbm=16 * GIB,
    bandwidth=819e9,
    link=50e9,
    dims=2,
    wraps_from=16,
    node=256,
    clock=1.5e9,
    cores=1,
    kinds=("TPU v5 lite", "TPU v5e"),
    far=200e9 / 8 / 8,
    reaches=_reaches(0.857, 1.0, 0.782, 0.0, "v5e"),
    on_chip=128 * 2**20,
    sources={
        "on_chip_bytes": f"{_BOOK}: 128 MiB of vector memory (VMEM)",
        "flops_per_second": f"{_CLOUD}/v5e: 197 TFLOP/s bf16, 393 TOP/s int8",
        "vector_flops_per_second": f"{_BOOK}: 128 lanes of 8, four ALUs, at 1.5 GHz",
        "hbm_bytes": f"{_CLOUD}/v5e: 16 GB",
        "hbm_bytes_per_second": f"{_CLOUD}/v5e: 819 GB/s",
        "near": f"{_CLOUD}/v5e: 400 GB/s both ways over four ports, 2D torus, closed at 16 ({_BOOK}); {_HOP}",
        "node_devices": f"{_CLOUD}/v5e: 256 chips",
        "clock_hertz": f"{_BOOK}: 1.5 GHz",
        "devices_per_chip": f"{_CLOUD}/v5e: one core",
    },
)

TPU_V5P = _tpu(
    "tpu_v5p",
    bf16=459e12,
    int8=918e12,
    vector=2 * 1024 * 4 * 1.75e9,
    hbm=95 * GIB,
    bandwidth=2765e9,
    link=100e9,
    dims=3,
    wraps_from=4,
    node=8960,
    clock=1.75e9,
    cores=1,
    kinds=("TPU v5p", "TPU v5"),
    far=200e9 / 8 / 4,
    reaches=_reaches(0.638, 1.0, 0.747, 0.0, "v5p"),
    on_chip=128 * 2**20,
    device_cores=2,
    overlaps=(),
    sources={
        "on_chip_bytes": "jax 0.12, jax/_src/tpu_info.py: 64 MiB of vector memory (VMEM) a core",
        "flops_per_second": f"{_CLOUD}/v5p: 459 TFLOP/s bf16, 918 TOP/s int8",
        "vector_flops_per_second": f"{_BOOK}: two cores of 128 lanes of 8, four ALUs, at 1.75 GHz",
        "hbm_bytes": f"{_CLOUD}/v5p: 95 GB",
        "hbm_bytes_per_second": f"{_CLOUD}/v5p: 2765 GB/s",
        "near": f"{_CLOUD}/v5p: 4800 Gbit/s over six links, 3D torus, closed from cubes of 4; {_HOP}",
        "node_devices": f"{_CLOUD}/v5p: 8960 chips",
        "clock_hertz": f"{_BOOK}: 1.75 GHz",
        "devices_per_chip": f"{_CLOUD}/v5p: the two cores of a chip are one device",
    },
)

TPU_V6E = _tpu(
    "tpu_v6e",
    bf16=918e12,
    int8=1836e12,
    vector=1024 * 4 * 1.75e9,
    hbm=32 * GIB,
    bandwidth=1638e9,
    link=100e9,
    dims=2,
    wraps_from=16,
    node=256,
    clock=1.75e9,
    cores=1,
    kinds=("TPU v6 lite", "TPU v6e"),
    far=400e9 / 8 / 8,
    reaches=_reaches(0.857, 1.0, 0.782, 0.0, "v5e", "v6e"),
    on_chip=128 * 2**20,
    unit=256,
    sources={
        "on_chip_bytes": "jax 0.12, jax/_src/tpu_info.py: 128 MiB of vector memory (VMEM)",
        "flops_per_second": f"{_CLOUD}/v6e: 918 TFLOP/s bf16, 1836 TOP/s int8",
        "vector_flops_per_second": f"{_CLOUD}/v6e: 128 lanes of 8; four ALUs at 1.75 GHz taken from the peak and {_BOOK}",
        "hbm_bytes": f"{_CLOUD}/v6e: 32 GB",
        "hbm_bytes_per_second": f"{_CLOUD}/v6e: 1638 GB/s",
        "near": f"{_CLOUD}/v6e: 800 GB/s both ways over four ports, 2D torus, closed at 16; {_HOP}",
        "node_devices": f"{_CLOUD}/v6e: 256 chips",
        "clock_hertz": f"918 TFLOP/s over two units of 256 x 256 ({_CLOUD}/v6e): 2 x 2 x 65536 FLOP a cycle",
        "devices_per_chip": f"{_CLOUD}/v6e: one core",
    },
)

V100 = _gpu(
    "v100",
    rates={"f16": 125e12, "bf16": 15.7e12, "f32": 15.7e12, "f64": 7.8e12},
    vector=15.7e12,
    hbm=32 * 10**9,
    bandwidth=900e9,
    nvlink=150e9,
    nic=12.5e9,
    clock=1.53e9,
    kinds=("Tesla V100", "V100"),
    sheet="NVIDIA V100 datasheet (SXM2, 32 GB)",
    system="NVIDIA DGX-2 datasheet: a 100 Gbit/s port for two GPUs of sixteen, taken as one for each of eight",
)

A100 = _gpu(
    "a100",
    rates={"bf16": 312e12, "f16": 312e12, "f32": 156e12, "f64": 19.5e12, "i8": 624e12},
    vector=19.5e12,
    hbm=80 * 10**9,
    bandwidth=2039e9,
    nvlink=300e9,
    nic=25e9,
    clock=1.41e9,
    kinds=("NVIDIA A100", "A100"),
    sheet="NVIDIA A100 datasheet (SXM, 80 GB; f32 products in TF32)",
    system="NVIDIA DGX A100 datasheet: eight 200 Gbit/s ports for eight GPUs",
)

H100 = _gpu(
    "h100",
    rates={"bf16": 989e12, "f16": 989e12, "f32": 494.5e12, "f64": 67e12, "i8": 1979e12, "f8": 1979e12},
    vector=67e12,
    hbm=80 * 10**9,
    bandwidth=3350e9,
    nvlink=450e9,
    nic=50e9,
    clock=1.98e9,
    kinds=("NVIDIA H100", "H100"),
    sheet="NVIDIA H100 datasheet (SXM, dense rates; f32 products in TF32)",
    system="NVIDIA DGX H100 datasheet: eight 400 Gbit/s ports for eight GPUs",
)

H200 = _gpu(
    "h200",
    rates={"bf16": 989e12, "f16": 989e12, "f32": 494.5e12, "f64": 67e12, "i8": 1979e12, "f8": 1979e12},
    vector=67e12,
    hbm=141 * 10**9,
    bandwidth=4800e9,
    nvlink=450e9,
    nic=50e9,
    clock=1.98e9,
    kinds=("NVIDIA H200", "H200"),
    sheet="NVIDIA H200 datasheet (SXM, dense rates; f32 products in TF32)",
    system="NVIDIA DGX H200 datasheet: eight 400 Gbit/s ports for eight GPUs",
)

B200 = _gpu(
    "b200",
    rates={"bf16": 2250e12, "f16": 2250e12, "f32": 1125e12, "f64": 37e12, "i8": 4500e12, "f8": 4500e12},
    vector=75e12,
    hbm=180 * 10**9,
    bandwidth=7700e9,
    nvlink=900e9,
    nic=50e9,
    clock=1.965e9,
    kinds=("NVIDIA B200", "B200"),
    sheet="NVIDIA HGX B200 datasheet (an eighth of the system, dense rates; f32 products in TF32)",
    system="NVIDIA DGX B200 datasheet: eight 400 Gbit/s ports for eight GPUs",
)

_XEON = "Intel Xeon Platinum 8480+ (ark.intel.com): 56 cores, 2.0 GHz, two AVX-512 FMA units a core, 8 channels of DDR5-4800"

CPU = Target(
    "cpu",
    "cpu",
    {"f32": 128e9, "f64": 64e9, "bf16": 128e9, "f16": 128e9},
    32e9,
    16 * GIB,
    307.2e9 / 56,
    Wires("switch", 307.2e9 / 56 / 2, 5e-6),
    4096,
    None,
    1,
    2.0e9,
    overlaps=(),
    sums_as={"bfloat16": "float32"},
    device_kinds=("cpu",),
    sources={
        "flops_per_second": f"{_XEON}: 2.0 GHz x 16 lanes x 2 units x 2 for one core",
        "vector_flops_per_second": f"{_XEON}: 2.0 GHz x 16 lanes for one core",
        "hbm_bytes": "a virtual device of a host: 16 GiB taken",
        "hbm_bytes_per_second": f"{_XEON}: 307.2 GB/s, a 56th",
        "near": f"{_XEON}: devices of one host copy through its memory, read and written; 5 microseconds for a hand-over taken",
        "node_devices": "virtual devices are all on one host",
        "clock_hertz": f"{_XEON}: 2.0 GHz",
        "devices_per_chip": "virtual devices",
        "sums_as": _SUMS_CPU,
    },
)

ALL = (TPU_V2, TPU_V3, TPU_V4, TPU_V5E, TPU_V5P, TPU_V6E, V100, A100, H100, H200, B200, CPU)
