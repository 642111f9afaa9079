"""Rules of the house that import-linter cannot express."""

import ast
import graphlib
from collections.abc import Container, Iterator
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
        elif isinstance(node, ast.Attribute) and node.attr in ("_src", "_jax", "xla_client"):
            yield ast.unparse(node)


def test_nobody_imports_private_jax() -> None:
    private = ("jax._src", "jaxlib._jax", "jaxlib.xla_client")

    users = {
        str(path.relative_to(PACKAGE))
        for path in PACKAGE.rglob("*.py")
        if any(name.startswith(private) for name in _imported(ast.parse(path.read_text())))
    }

    assert users == set()


def test_no_circle_of_imports_between_files() -> None:
    """Imports inside functions and for type checkers count, too; a package stands for its `__init__.py`."""
    paths = {".".join(path.relative_to(PACKAGE.parent).with_suffix("").parts): path for path in PACKAGE.rglob("*.py")}
    modules = {name.removesuffix(".__init__"): path for name, path in paths.items()}
    graph: dict[str, set[str]] = {}
    for name, path in modules.items():
        imported = {_module(found, modules) for found in _imported(ast.parse(path.read_text()))}
        graph[name] = imported - {name, ""}

    graphlib.TopologicalSorter(graph).prepare()  # raises CycleError, with the circle


def _module(dotted: str, modules: Container[str]) -> str:
    """The module that a dotted name is, or is in; "" for one of another package."""
    while dotted and dotted not in modules:
        dotted = dotted.rpartition(".")[0]
    return dotted


def test_no_file_is_long() -> None:
    long = {str(path.relative_to(PACKAGE)) for path in PACKAGE.rglob("*.py") if path.read_text().count("\n") > 600}

    assert long == set()
