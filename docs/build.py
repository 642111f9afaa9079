"""Makes what the docs say about the code from the code: `make docs`; `--check` only compares (exit 1 if stale).

- docs/architecture.md, docs/rooms/*.md: between the two `modules` markers, modules with the first sentence of their docstring;
- docs/api.md: every public name of `partir` and `partir.zoo` with its signature and docstring, and what classes have to offer;
  an error if one has no docstring.
"""

from __future__ import annotations

import ast
import importlib
import inspect
import re
import sys
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import is_dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from partir.tactics import Tactic

DOCS = Path(__file__).parent
ROOT = DOCS.parent
BEGIN, END = "<!-- modules: made by docs/build.py -->", "<!-- /modules -->"


ROOMS = DOCS / "rooms"


def module_lines(paths: Iterable[Path]) -> Iterator[str]:
    """One Markdown row per module: its path and what it is for."""
    yield "| module | what it is for |"
    yield "|---|---|"
    for path in sorted(paths):
        docstring = ast.get_docstring(ast.parse(path.read_text()))
        if docstring is None:
            if path.name == "__init__.py" and not path.read_text().strip():
                continue
            sys.exit(f"{path.relative_to(ROOT)} has no docstring")
        yield f"| `{path.relative_to(ROOT)}` | {' '.join(docstring.split(chr(10) * 2)[0].split())} |"


def with_modules(page: Path, paths: Iterable[Path]) -> str:
    """A page with its list of modules renewed."""
    text = page.read_text()
    if BEGIN not in text or END not in text:
        sys.exit(f"{page.relative_to(ROOT)} has no markers\n  try     a line `{BEGIN}` and, below it, a line `{END}`")
    before, rest = text.split(BEGIN, 1)
    return "\n".join([before + BEGIN, "", *module_lines(paths), "", END + rest.split(END, 1)[1]])


def rooms() -> Iterator[tuple[Path, str]]:
    """docs/architecture.md with the modules above the rooms, and a page for each room. A room without a page is an error."""
    package = ROOT / "partir"
    yield DOCS / "architecture.md", with_modules(DOCS / "architecture.md", package.glob("*.py"))
    for room in sorted(path.parent for path in package.glob("*/__init__.py")):
        page = ROOMS / f"{room.name}.md"
        if not page.exists():
            sys.exit(f"docs/rooms has no page of {room.relative_to(ROOT)}")
        yield page, with_modules(page, room.rglob("*.py"))


def signature(value: Any) -> str:
    """The parameters of a function or dataclass, with annotations unquoted; other classes are not made by their users."""
    if not (inspect.isroutine(value) or is_dataclass(value)):
        return ""
    return re.sub(r"(: |-> )(['\"])(.*?)\2", r"\1\3", str(inspect.signature(value)))


def members(value: type) -> Iterator[tuple[str, Any]]:
    """What a class itself defines for its users: methods and properties, in the order of the file. How a tactic comes to its
    actions is the same for all, and stands at `partir.tactics.Tactic`."""
    for name, member in vars(value).items():
        if name.startswith("_") or (name == "actions" and issubclass(value, Tactic)):
            continue
        if isinstance(member, property):
            yield name, member.fget
        elif isinstance(member, cached_property):
            yield name, member.func
        elif isinstance(member, classmethod | staticmethod):
            yield name, member.__func__
        elif inspect.isfunction(member):
            yield name, member


def member_lines(value: type) -> Iterator[str]:
    """A list item for each member, with its parameters and the first paragraph of its docstring."""
    for name, function in members(value):
        called = inspect.isfunction(vars(value)[name])
        text = signature(function).replace("(self, ", "(").replace("(self)", "()") if called else ""
        first = " ".join((inspect.getdoc(function) or "").split("\n\n")[0].split())
        yield f"- `.{name}{text}` {first}"


def api() -> str:
    """docs/api.md: the reference of all public names."""
    pages = ["# Reference", "", "Made by `make docs` from the docstrings.", ""]
    undocumented: list[str] = []
    for package in ("partir", "partir.targets", "partir.zoo"):
        module = importlib.import_module(package)
        pages += [f"## {package}", "", inspect.getdoc(module) or "", ""]
        for name in sorted(module.__all__):
            value = getattr(module, name)
            if inspect.isclass(value) or inspect.isroutine(value) or inspect.ismodule(value):
                pages += [f"### `{package}.{name}{signature(value)}`", "", inspect.getdoc(value) or "", ""]
                if not inspect.getdoc(value):
                    undocumented.append(f"{package}.{name}")
                if inspect.isclass(value) and (lines := list(member_lines(value))):
                    pages += [*lines, ""]
                    undocumented += [f"{package}.{name}.{m}" for m, own in members(value) if not own.__doc__]
            else:
                shown = ", ".join(f"`{key}`" for key in value) if isinstance(value, Mapping) else f"`{value!r}`"
                pages += [f"### `{package}.{name}`", "", shown, ""]
    if undocumented:
        sys.exit(f"public names without a docstring: {', '.join(undocumented)}")
    return "\n".join(pages)


def main() -> None:
    """Write the pages, or compare them with what is there."""
    stale: list[str] = []
    for path, text in (*rooms(), (DOCS / "api.md", api())):
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
