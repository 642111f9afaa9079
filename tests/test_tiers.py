"""Every test is of one tier, and the core tier does without JAX."""

import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.jax

TIERS = {"core", "jax", "tpu", "gpu"}


def test_every_test_has_a_tier(request: pytest.FixtureRequest) -> None:
    tiers = {item.nodeid: TIERS & {mark.name for mark in item.iter_markers()} for item in request.session.items}

    wrong = {name: found for name, found in tiers.items() if not found or ("core" in found and len(found) > 1)}

    assert not wrong


def test_modules_with_core_tests_say_so(request: pytest.FixtureRequest) -> None:
    """By this text `-m core` knows which modules to import (conftest.py)."""
    modules = {item.path for item in request.session.items if item.get_closest_marker("core")}

    assert {path.name for path in modules if "pytest.mark.core" not in path.read_text()} == set()


def test_the_core_tier_imports_no_jax() -> None:
    script = (
        "import sys, pytest\n"
        "code = pytest.main(['-m', 'core', '-q', '-p', 'no:cacheprovider', '-p', 'no:xdist'])\n"
        "assert not {'jax', 'jaxlib'} & set(sys.modules), 'a core test imported JAX'\n"
        "sys.exit(code)\n"
    )

    run = subprocess.run([sys.executable, "-c", script], cwd=Path(__file__).parents[1], capture_output=True, text=True)

    assert run.returncode == 0, run.stdout + run.stderr
