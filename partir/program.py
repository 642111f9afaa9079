"""The one value that flows: a program imported from JAX, with the names its user knows it by."""

from __future__ import annotations

import fnmatch
import hashlib
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
    """One array of the signature: its path from the argument (or result) name down, shape, dtype, and what it is for.

    `role` is `state` for what a step hands to the next (or is named like it), `constant` for a closed-over array that
    became an argument, else `input`. `donated` says that the caller gave the buffer away. `memory` is the kind of memory that
    it is kept in, "" for the device's own.
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
    """What goes in and out: leaves in flat order, and `state`, the pairs (argument, result) that are one state."""

    arguments: tuple[Leaf, ...]
    results: tuple[Leaf, ...]
    state: tuple[tuple[int, int], ...] = ()

    @cached_property
    def argument_of_result(self) -> dict[int, int]:
        return {result: argument for argument, result in self.state}

    def select(self, pattern: str) -> list[int]:
        """The arguments a pattern names, in order. Raises PathError with the nearest paths when there is none."""
        paths = [leaf.path for leaf in self.arguments]
        found = [i for i, path in enumerate(paths) if matches(pattern, path)]
        if not found:
            raise PathError(no_match(pattern, paths))
        return found


def matches(pattern: str, path: Path) -> bool:
    """Whether a glob over levels names this leaf or an inner node above it.

    `*` stands for anything within one level, `**` for any number of levels. Levels are pytree keys; one that itself holds
    `/` (Haiku's module names) is matched whole by one part of the pattern, or piece by piece.

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
    """The message for a pattern that names nothing, with the nearest names offered."""
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
    """A function imported for one platform: its `main` in StableHLO with a sharding rule and an origin on each op.

    `constants` are the values of the arguments of role `constant` (the last ones); `assumed` says what was assumed of roles,
    `notes` what is not done as written. `host` is whatever the runtime needs to run the program's host callbacks again, `trees`
    the pytrees of a call, `again` imports the function for another platform and mesh: all opaque to the layers between.
    `said_over` is the mesh over whose axes the import said what the function says over meshes of its own; None where it names
    no others.
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
    def fingerprint(self) -> str:
        """A hash of what a strategy relies on: names, shapes, dtypes and the ops in order, not their numbers or lines."""
        digest = hashlib.sha256()
        for leaf in (*self.signature.arguments, *self.signature.results):
            digest.update(f"{leaf.name}:{len(leaf.shape)}:{leaf.dtype};".encode())
        return digest.hexdigest()[:16]

    @cached_property
    def scopes(self) -> ScopeTree:
        """The tree of named scopes, each with the number of ops directly in it."""
        root = ScopeTree("")
        for op in self.body.ops:
            root.insert(origin_of(op).scope.data)
        return root


def main_of(module: ModuleOp) -> FuncOp:
    """The function that a module runs."""
    for op in module.body.block.ops:
        if isinstance(op, FuncOp) and op.sym_name.data == "main":
            return op
    raise PathError("the module has no function @main")


_NOWHERE = OriginAttr.of("", "forward", "")


def origin_of(op: Operation) -> OriginAttr:
    """Where an op comes from: scope, phase and source line (empty when unknown)."""
    found = op.attributes.get("partir.origin")
    return found if isinstance(found, OriginAttr) else _NOWHERE


@dataclass
class ScopeTree:
    """One named scope: `name`, the `ops` directly in it, and its inner scopes by name."""

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
        """The ops in this scope and all scopes within it."""
        return self.ops + sum(child.total for child in self.children.values())

    def lines(self, indent: int = 0) -> list[str]:
        own = [f"{'  ' * indent}{self.name or '(program)'}  {self.total} ops"]
        return own + [line for child in self.children.values() for line in child.lines(indent + 1)]

    def __repr__(self) -> str:
        return "\n".join(self.lines())


def type_bytes(type_: Any) -> int:
    """The bytes of a tensor type, sub-byte elements rounded up to a byte; 0 for tokens."""
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
