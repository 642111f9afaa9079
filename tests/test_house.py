"""Rules of the house that import-linter cannot express."""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parents[1] / "partir"

pytestmark = pytest.mark.core


def _imported(tree: ast.AST) -> Iterator[str]:
    """The modules a file imports, and the dotted names it uses, `jax._src` reached as an attribute included."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield node.module
            yield from (f"{node.module}.{alias.name}" for alias in node.names)
        elif isinstance(node, ast.Attribute):
            yield ast.unparse(node)


def test_only_compat_uses_private_jax() -> None:
    private = ("jax._src", "jaxlib._jax", "jaxlib.xla_client")

    users = {
        str(path.relative_to(PACKAGE))
        for path in PACKAGE.rglob("*.py")
        if any(name.startswith(private) for name in _imported(ast.parse(path.read_text())))
    }

    assert users <= {"runtime/compat.py"}
