"""The program that a JAX function is imported as: its StableHLO, and the names and roles of its arguments and results."""

from __future__ import annotations

import fnmatch
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from functools import cache, cached_property
from typing import Any, Literal

from xdsl.dialects.builtin import ModuleOp, TensorType
from xdsl.dialects.func import FuncOp
from xdsl.ir import Block, Operation

from partir.dialect.core import OriginAttr
from partir.errors import PathError, error_text
from partir.mesh import Mesh

Role = Literal["state", "input", "constant"]
Path = tuple[str, ...]


@dataclass(frozen=True)
class Leaf:
    """One array of the signature: its path from the name of the argument (or result) down, its shape and dtype, and its role.

    `role` is "state" for what a step passes on to the next (or what is named like it) and for random keys, "constant" for a
    closed-over array that became an argument, else "input". `donated` says that the caller donates the buffer. `memory` is the
    memory kind it is kept in, "" for device memory.
    """

    path: Path
    shape: tuple[int, ...]
    dtype: str
    role: Role = "input"
    donated: bool = False
    memory: str = ""

    @property
    def name(self) -> str:
        """The path as it is shown: levels joined by `/`."""
        return "/".join(self.path)

    def __repr__(self) -> str:
        return f"{self.name}: {self.dtype}{list(self.shape)} ({self.role})"


@dataclass(frozen=True)
class Signature:
    """The arguments and results in flat order, and `state`: the pairs (argument, result) where the result is the argument's
    next value."""

    arguments: tuple[Leaf, ...]
    results: tuple[Leaf, ...]
    state: tuple[tuple[int, int], ...] = ()

    @cached_property
    def argument_of_result(self) -> dict[int, int]:
        return {result: argument for argument, result in self.state}

    def select(self, pattern: str) -> list[int]:
        """The numbers of the arguments that a pattern names. Raises PathError, with similar paths, if there are none."""
        paths = [leaf.path for leaf in self.arguments]
        found = [i for i, path in enumerate(paths) if matches(pattern, path)]
        if not found:
            raise PathError(no_match(pattern, paths))
        return found


def matches(pattern: str, path: Path) -> bool:
    """Whether a glob pattern over levels names this leaf, or a node above it.

    `*` matches anything within one level, `**` any number of levels. Levels are pytree keys. A key that itself has slashes
    (Haiku's module names) is matched by one part of the pattern, or its pieces by as many parts.

    >>> matches("params/*/w", ("params", "mlp", "w")), matches("params", ("params", "mlp", "w"))
    (True, True)
    >>> matches("**/w", ("params", "layer_0/mlp", "w")), matches("params/mlp", ("params", "mlp_2", "w"))
    (True, False)
    >>> matches("params/*/w", ("params", "layer_0/mlp", "w")), matches("params/layer_0", ("params", "layer_0/mlp", "w"))
    (True, True)
    """
    return _match(pattern.strip("/").split("/"), path)


def _match(pattern: Sequence[str], path: Path) -> bool:
    if not pattern:
        return True
    if pattern[0] == "**":
        flat = [part for level in path for part in level.split("/")]
        return len(pattern) == 1 or any(_match(pattern[1:], tuple(flat[i:])) for i in range(len(flat)))
    if not path:
        return False
    level, rest = path[0], path[1:]
    if fnmatch.fnmatchcase(level, pattern[0]) and _match(pattern[1:], rest):
        return True
    pieces = level.split("/")
    if len(pieces) == 1:
        return False
    head = pattern[: len(pieces)]
    return (
        "**" not in head
        and all(fnmatch.fnmatchcase(piece, part) for piece, part in zip(pieces, head, strict=False))
        and _match(pattern[len(pieces) :], rest)
    )


def no_match(pattern: str, paths: Iterable[Path], what: str = "argument") -> str:
    """The error message for a pattern that names nothing, with similar names as suggestions."""
    import difflib

    names = ["/".join(path) for path in paths]
    near = difflib.get_close_matches(pattern, names, n=3, cutoff=0.3)
    if not near:
        tail = pattern.rsplit("/", 1)[-1].strip("*")
        near = [name for name in names if tail and tail in name][:3]
    return error_text(
        f'no {what} matches "{pattern}"',
        why=f"none of the {len(names)} {what} paths fits the pattern (levels joined by /, * within one, ** across)",
        hint="one of " + ", ".join(near or names[:3]) if names else f"the program has no {what}s",
    )


@dataclass(frozen=True, eq=False)
class Program:
    """A function imported for one platform: its `main` in StableHLO, with a sharding rule and an origin on each op.

    `constants` are the values of the last arguments, whose role is "constant". `assumed` has a line for each assumption about
    roles, `notes` one for each request of the function that has no effect. `host` is what the runtime needs for the program's
    host callbacks, `trees` are the pytrees of a call, and `again` imports the function for another platform and mesh; the
    layers in between do not look into these three. `said_over` is the mesh to whose axes the import translated shardings over
    other meshes that the function names; None if it names no others.
    """

    module: ModuleOp
    signature: Signature
    name: str
    platform: str = "cpu"
    constants: tuple[Any, ...] = ()
    trees: Any = None
    host: Any = None
    notes: tuple[str, ...] = field(default=())
    assumed: tuple[str, ...] = ()
    again: Callable[[str, Mesh | None], Program] | None = None
    said_over: Mesh | None = None

    @cached_property
    def main(self) -> FuncOp:
        return main_of(self.module)

    @property
    def body(self) -> Block:
        return self.main.body.blocks[0]

    @cached_property
    def scopes(self) -> ScopeTree:
        """The tree of named scopes, each with the number of ops directly in it (ops inside loops and branches do not count)."""
        root = ScopeTree("")
        for op in self.body.ops:
            root.insert(origin_of(op).scope.data)
        return root


def main_of(module: ModuleOp) -> FuncOp:
    """The function `main` of a module. Raises PathError if there is none."""
    for op in module.body.block.ops:
        if isinstance(op, FuncOp) and op.sym_name.data == "main":
            return op
    raise PathError("the module has no function @main")


_NOWHERE = OriginAttr.of("", "forward", "")


def origin_of(op: Operation) -> OriginAttr:
    """The scope, phase and source line that an op comes from (no scope and line, and forward, if it has no origin)."""
    found = op.attributes.get("partir.origin")
    return found if isinstance(found, OriginAttr) else _NOWHERE


@dataclass
class ScopeTree:
    """One named scope: its `name`, the number of `ops` directly in it, and its inner scopes by name."""

    name: str
    ops: int = 0
    children: dict[str, ScopeTree] = field(default_factory=dict[str, "ScopeTree"])

    def insert(self, path: str) -> None:
        node = self
        for level in path.split("/") if path else []:
            node = node.children.setdefault(level, ScopeTree(level))
        node.ops += 1

    @property
    def total(self) -> int:
        """The number of ops in this scope and in all scopes within it."""
        return self.ops + sum(child.total for child in self.children.values())

    def lines(self, indent: int = 0) -> list[str]:
        own = [f"{'  ' * indent}{self.name or '(program)'}  {self.total} ops"]
        return own + [line for child in self.children.values() for line in child.lines(indent + 1)]

    def __repr__(self) -> str:
        return "\n".join(self.lines())


def type_bytes(type_: Any) -> int:
    """The bytes of a tensor type; elements smaller than a byte count as one byte. 0 for tokens."""
    if not isinstance(type_, TensorType):
        return 0
    count = 1
    for size in type_.get_shape():
        count *= size
    return count * element_bytes(type_.element_type)


def item_bytes(type_: Any) -> int:
    """The bytes of one element of a tensor type; 0 for tokens."""
    return element_bytes(type_.element_type) if isinstance(type_, TensorType) else 0


@cache
def element_bytes(element: Any) -> int:
    """The bytes of one element, by the element type's name (`f32`, `bf16`, `i1`, `complex<f32>`)."""
    text = str(element)
    if text.startswith("complex<"):
        return 2 * element_bytes(text[8:-1])
    digits = "".join(c if c.isdigit() else " " for c in text).split()
    return max(1, int(digits[0]) // 8) if digits else 4
