"""Makes what the docs say about the code from the code: `make docs`; `--check` only compares (exit 1 if stale).

- docs/architecture.md: between the two `modules` markers, each module with the first sentence of its docstring;
- docs/api.md: every public name of `partir` and `partir.zoo` with its signature and docstring; an error if it has none.
"""

from __future__ import annotations

import ast
import importlib
import inspect
import re
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

DOCS = Path(__file__).parent
ROOT = DOCS.parent
BEGIN, END = "<!-- modules: made by docs/build.py -->", "<!-- /modules -->"


def module_lines() -> Iterator[str]:
    """One Markdown row per module of the package: its path and what it is for."""
    yield "| module | what it is for |"
    yield "|---|---|"
    for path in sorted((ROOT / "partir").rglob("*.py")):
        docstring = ast.get_docstring(ast.parse(path.read_text()))
        if docstring is None:
            if path.name == "__init__.py" and not path.read_text().strip():
                continue
            sys.exit(f"{path.relative_to(ROOT)} has no docstring")
        yield f"| `{path.relative_to(ROOT)}` | {' '.join(docstring.split(chr(10) * 2)[0].split())} |"


def architecture() -> str:
    """docs/architecture.md with the list of modules renewed."""
    text = (DOCS / "architecture.md").read_text()
    if BEGIN not in text or END not in text:
        sys.exit(f"docs/architecture.md has no markers\n  try     a line `{BEGIN}` and, below it, a line `{END}`")
    before, rest = text.split(BEGIN, 1)
    return "\n".join([before + BEGIN, "", *module_lines(), "", END + rest.split(END, 1)[1]])


def signature(value: Any) -> str:
    """The parameters of a class or function, with annotations unquoted; nothing for a module."""
    if inspect.ismodule(value):
        return ""
    return re.sub(r"(: |-> )(['\"])(.*?)\2", r"\1\3", str(inspect.signature(value)))


def api() -> str:
    """docs/api.md: the reference of all public names."""
    pages = ["# Reference", "", "Made by `make docs` from the docstrings.", ""]
    undocumented: list[str] = []
    for package in ("partir", "partir.zoo"):
        module = importlib.import_module(package)
        pages += [f"## {package}", "", inspect.getdoc(module) or "", ""]
        for name in sorted(module.__all__):
            value = getattr(module, name)
            if inspect.isclass(value) or inspect.isroutine(value) or inspect.ismodule(value):
                if not inspect.getdoc(value):
                    undocumented.append(f"{package}.{name}")
                pages += [f"### `{package}.{name}{signature(value)}`", "", inspect.getdoc(value) or "", ""]
            else:
                pages += [
                    f"### `{package}.{name}`",
                    "",
                    ", ".join(f"`{key}`" for key in value) if isinstance(value, Mapping) else f"`{value!r}`",
                    "",
                ]
    if undocumented:
        sys.exit(f"public names without a docstring: {', '.join(undocumented)}")
    return "\n".join(pages)


def main() -> None:
    """Write both pages, or compare them with what is there."""
    stale: list[str] = []
    for path, text in ((DOCS / "architecture.md", architecture()), (DOCS / "api.md", api())):
        if path.exists() and path.read_text() == text:
            continue
        stale.append(str(path.relative_to(ROOT)))
        if "--check" not in sys.argv:
            path.write_text(text)
    print(f"{'stale' if '--check' in sys.argv else 'written'}: {', '.join(stale)}" if stale else "docs are up to date")
    if stale and "--check" in sys.argv:
        sys.exit("  try     make docs")


if __name__ == "__main__":
    main()
