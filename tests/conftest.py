"""Eight virtual CPU devices, seeds, 64-bit mode where asked for, and golden tables."""

import difflib
import gc
import os
import random
from collections.abc import Callable, Iterator
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path

import hypothesis
import numpy as np
import pytest

# Read by JAX when it is first imported: before any test module. Tests compile much and compute little, and most of XLA's time
# on CPU is what comes after the passes on HLO (and so after the collectives, which stay the same): LLVM's optimizations, splits
# of a program for threads, and, up to jaxlib 0.10, a run of MLIR's passes for each fusion, where the older emitters need none.
# libtpu reads the same variable and aborts on the last of these flags, which it does not know.
XLA_FLAGS = (
    "--xla_force_host_platform_device_count=8",
    "--xla_backend_optimization_level=0",
    "--xla_cpu_parallel_codegen_split_count=1",
    *(["--xla_cpu_use_fusion_emitters=false"] if version("jaxlib").startswith("0.10.") and not find_spec("libtpu") else []),
)
given = os.environ.get("XLA_FLAGS", "")
os.environ["XLA_FLAGS"] = " ".join([given, *(flag for flag in XLA_FLAGS if flag.split("=")[0] not in given)]).strip()
os.environ.setdefault("JAX_PLATFORMS", "cpu")
os.environ.setdefault("TPU_SKIP_MDS_QUERY", "1")

# Python looks for cycles after every 700 objects, among all there are every now and then: an eighth of the whole time.
gc.set_threshold(50_000, 10, 10)

GOLDEN = Path(__file__).parent / "golden"

# The same examples in every run; no deadline, because the first call of anything compiles.
hypothesis.settings.register_profile("partir", derandomize=True, deadline=None, database=None)
hypothesis.settings.load_profile("partir")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--update-golden", action="store_true", help="rewrite tests/golden/ instead of comparing with it")


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """With `-m core`, modules without a core test are not even imported: most of them import JAX, which takes half a minute.

    A module that mixes tiers says `pytest.mark.core` at the tests that are core, and imports JAX within those that are not.
    """
    if config.option.markexpr == "core" and collection_path.match("test_*.py"):
        return "pytest.mark.core" not in collection_path.read_text() or None
    return None


def pytest_collection_finish() -> None:
    """What was imported stays: no reason to look at it again."""
    gc.freeze()


@pytest.fixture(autouse=True)
def _seeded() -> None:
    random.seed(0)
    np.random.seed(0)


@pytest.fixture
def rng() -> np.random.Generator:
    """Random numbers that are the same in every run."""
    return np.random.default_rng(0)


@pytest.fixture
def x64() -> Iterator[None]:
    """JAX in 64-bit mode for one test."""
    import jax

    with jax.enable_x64(True):
        yield


@pytest.fixture
def golden(request: pytest.FixtureRequest) -> Callable[[str, str], None]:
    """Compare a text table with tests/golden/<name>.txt: `golden("gpt-megatron", table)`."""

    def compare(name: str, text: str) -> None:
        path = GOLDEN / f"{name}.txt"
        lines = [line.rstrip() for line in text.strip("\n").splitlines()]
        if request.config.getoption("--update-golden"):
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text("\n".join(lines) + "\n")
            return
        expected = path.read_text().splitlines() if path.exists() else []
        if lines != expected:
            diff = "\n".join(difflib.unified_diff(expected, lines, f"golden/{name}.txt", "now", lineterm=""))
            pytest.fail(f"{diff}\nif this is what should be: pytest --update-golden {request.node.nodeid}", pytrace=False)

    return compare
