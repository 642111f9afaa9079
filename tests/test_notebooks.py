"""Notebooks are committed without outputs; `make notebooks` runs them."""

import json
from pathlib import Path

import pytest

NOTEBOOKS = sorted((Path(__file__).parents[1] / "notebooks").glob("*.ipynb"))

pytestmark = pytest.mark.core


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.name)
def test_a_notebook_has_no_outputs(path: Path) -> None:
    cells = json.loads(path.read_text())["cells"]

    assert [cell["source"] for cell in cells if cell.get("outputs") or cell.get("execution_count")] == []
