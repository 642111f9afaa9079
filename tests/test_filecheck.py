"""Text in, text out: every `.mlir` file of tests/filecheck, run by lit as its RUN lines say."""

import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.core

FOLDER = Path(__file__).parent / "filecheck"


@pytest.mark.parametrize("path", sorted(FOLDER.rglob("*.mlir")), ids=lambda path: path.stem)
def test_filecheck(path: Path) -> None:
    lit = [sys.executable, "-c", "import lit.main; lit.main.main()", "--verbose", str(path)]

    run = subprocess.run(lit, capture_output=True, text=True)

    assert run.returncode == 0, run.stdout + run.stderr
