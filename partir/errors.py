"""The exceptions that partir raises, and the function that makes their messages: what is wrong, where, why, what to try."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any


class PartirError(Exception):
    """The base of all exceptions that partir raises on purpose."""


class MeshError(PartirError, ValueError):
    """An axis that is not in the mesh, or a mesh with more devices than there are."""


class PathError(PartirError, KeyError):
    """A pattern, path or scope that names nothing in the program."""

    def __str__(self) -> str:  # KeyError shows repr(args[0]), which would escape the line breaks
        return str(self.args[0]) if self.args else ""


class TilingError(PartirError, ValueError):
    """A dim that is out of range, does not divide, or is sharded already."""


class NoEffectError(PartirError, ValueError):
    """A tactic that changed nothing.

    `held` are those of its decisions that hold already, as far as it knows them. If the program's own shardings made them, the
    schedule continues without an error.
    """

    def __init__(self, message: str, held: Sequence[Any] = ()) -> None:
        super().__init__(message)
        self.held = tuple(held)


class StrategyError(PartirError, ValueError):
    """A strategy file that is damaged, or was saved for another program."""


class TransformError(PartirError, TypeError):
    """A JAX transformation that cannot go through a partitioned function."""


class ProgramError(PartirError, TypeError):
    """A function that cannot be imported, or a call that does not fit what was traced."""


class CompilerError(PartirError, RuntimeError):
    """A real compiler that is not installed, refuses a program, aborts, or takes too long."""


class MemoryLimitError(CompilerError):
    """A program that does not fit into the memory of a device, as reported by its compiler."""


class TargetError(PartirError, ValueError):
    """A target that is unknown, missing where one is needed, or described by impossible numbers."""


class SearchError(PartirError, ValueError):
    """A search with nothing to decide, or with impossible settings."""


class IRError(PartirError, ValueError):
    """IR, or text of it, that breaks a rule of its dialect."""


def error_text(what: str, *, where: str = "", why: str = "", hint: str = "") -> str:
    """The message of one error: a line that says what failed, then labelled lines (where, why, try) for those that are given.

    >>> print(error_text("cannot tile x over mesh axis 'model'", why="7 does not divide by 2", hint="pad to 8"))
    cannot tile x over mesh axis 'model'
      why     7 does not divide by 2
      try     pad to 8
    """
    lines = [what]
    for label, text in (("where", where), ("why", why), ("try", hint)):
        if text:
            lines.append(f"  {label:<7} {text}")
    return "\n".join(lines)


def error_texts(messages: Sequence[str]) -> str:
    """Join the messages of all offenders, without duplicates, in the order found."""
    return "\n".join(dict.fromkeys(messages))
