"""The examples in docstrings are true."""

import doctest
import importlib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
DOCUMENTED = [path for path in sorted((ROOT / "partir").rglob("*.py")) if ">>> " in path.read_text()]


@pytest.mark.jax
@pytest.mark.parametrize("path", DOCUMENTED, ids=lambda path: str(path.relative_to(ROOT)))
def test_docstring_examples(path: Path) -> None:
    module = importlib.import_module(".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__"))

    failed, attempted = doctest.testmod(module)

    assert attempted > 0
    assert failed == 0
