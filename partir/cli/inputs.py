"""Parses what users write on the command line (meshes, targets, settings, schedules) without executing any of it."""

from __future__ import annotations

import ast
import difflib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import is_dataclass
from typing import TYPE_CHECKING, Any

from partir.errors import MeshError, ProgramError, error_text
from partir.mesh import Mesh

if TYPE_CHECKING:
    from partir.cost.target import Target
    from partir.sharding.actions import Action
    from partir.tactics import Tactic

    Item = Tactic | Action

DEFAULT_MESH = "data=4,model=2"


def mesh_of(text: str) -> Mesh:
    """A mesh from text such as `data=4,model=2`, major axis first. Raises MeshError for other text.

    >>> mesh_of("data=4,model=2")
    Mesh(data=4, model=2)
    """
    axes: list[tuple[str, int]] = []
    for item in text.split(","):
        name, equals, size = (part.strip() for part in item.partition("="))
        if not (name and equals and size.isdecimal()):
            raise MeshError(
                error_text(
                    f'cannot read the mesh "{text}"',
                    why=f'"{item.strip()}" is not a name and a number of devices',
                    hint=f"--mesh {DEFAULT_MESH}",
                )
            )
        axes.append((name, int(size)))
    return Mesh(axes)


def target_of(text: str) -> Target:
    """A target by name, or from a file whose name ends in `.json`. Raises TargetError if there is none.

    >>> target_of("h100")
    Target('h100': 989 TFLOP/s, 80 GB)
    """
    from partir import targets

    return targets.load(text) if text.endswith(".json") else targets.get(text)


def settings_of(items: Iterable[str]) -> dict[str, Any]:
    """Keyword arguments from items such as `layers=4`, `norm=rms`, `widths=(8,4)`. Values are Python literals, or else text.

    >>> settings_of(["layers=4", "norm=rms", "tied=True"])
    {'layers': 4, 'norm': 'rms', 'tied': True}
    """
    settings: dict[str, Any] = {}
    for item in items:
        name, equals, value = item.partition("=")
        if not (name.isidentifier() and equals and value):
            raise ProgramError(
                error_text(f'cannot read the setting "{item}"', why="it is not NAME=VALUE", hint="--set layers=4")
            )
        try:
            settings[name] = ast.literal_eval(value)
        except (ValueError, SyntaxError):
            settings[name] = value
    return settings


def schedule_of(text: str) -> list[Item]:
    """A schedule from Python text: calls of tactics or actions with literal arguments, separated by commas.

    The text is parsed, not evaluated. Raises ProgramError with the column of what cannot be read.

    >>> schedule_of("DataParallel('data'), Megatron('model')")
    [DataParallel(axis='data', inputs=None, reduce_dtype=None), Megatron(axis='model', scope=None)]
    """
    text = text.replace("\n", " ")
    try:
        tree = ast.parse(f"[{text}]", mode="eval").body
    except SyntaxError as error:
        raise _refusal(text, max(0, (error.offset or 2) - 2), error.msg) from None
    if not isinstance(tree, ast.List):
        raise _refusal(text, 0, "its brackets do not match")
    elements = tree.elts
    if len(elements) == 1 and isinstance(elements[0], ast.List):
        elements = elements[0].elts
    items = known_items()
    return [_item(node, text, items) for node in elements]


def known_items() -> Mapping[str, Callable[..., Item]]:
    """What a schedule can call, by name: the public tactics, and the actions."""
    import partir
    from partir import tactics
    from partir.sharding.actions import KINDS

    found: dict[str, Callable[..., Any]] = {}
    for name in partir.__all__:
        value = getattr(partir, name)
        is_tactic = name in tactics.__all__ and is_dataclass(value)
        if isinstance(value, type) and (value in KINDS.values() or is_tactic):
            found[name] = value
    return found


def near(name: str, names: Iterable[str], limit: int = 8) -> str:
    """The known names to suggest for an unknown one, the most similar first."""
    every = list(names)
    close = difflib.get_close_matches(name, every, n=3, cutoff=0.5)
    return ", ".join([*close, *(other for other in every if other not in close)][:limit])


def _item(node: ast.expr, text: str, items: Mapping[str, Callable[..., Item]]) -> Item:
    name = _name(node.func) if isinstance(node, ast.Call) else None
    if not isinstance(node, ast.Call) or name is None:
        shown = _name(node)
        hint = f"{shown}('data')" if shown in items else "DataParallel('data'), Megatron('model')"
        raise _refusal(text, _column(node), "it is not a call of a tactic", hint)
    if name not in items:
        raise _refusal(text, _column(node), f'there is no tactic "{name}"', near(name, items))
    args, kwargs = _arguments(node, text)
    try:
        return items[name](*args, **kwargs)
    except TypeError as error:
        raise _refusal(text, _column(node), str(error).replace(".__init__()", "()")) from None


def _arguments(node: ast.Call, text: str) -> tuple[list[Any], dict[str, Any]]:
    args = [_value(arg, text) for arg in node.args]
    kwargs: dict[str, Any] = {}
    for keyword in node.keywords:
        if keyword.arg is None:
            raise _refusal(text, _column(keyword.value), "** is not a literal argument")
        kwargs[keyword.arg] = _value(keyword.value, text)
    return args, kwargs


def _searchers() -> Mapping[str, Callable[..., Any]]:
    from partir.search import MCTS, Beam, Exhaustive, Random

    return {searcher.__name__: searcher for searcher in (MCTS, Beam, Exhaustive, Random)}


def _value(node: ast.expr, text: str) -> Any:
    """The value of an argument: a literal, PartitionSpec, searcher or FIRST_DIVISIBLE_DIM, or a container of those."""
    if isinstance(node, ast.Call) and _name(node.func) in ("P", "PartitionSpec"):
        from jax.sharding import PartitionSpec

        args, kwargs = _arguments(node, text)
        if kwargs:
            raise _refusal(text, _column(node), "a PartitionSpec takes the axes of each dim, without keywords")
        return PartitionSpec(*args)
    if isinstance(node, ast.Call) and (searcher := _searchers().get(_name(node.func) or "")) is not None:
        args, kwargs = _arguments(node, text)
        try:
            return searcher(*args, **kwargs)
        except TypeError as error:
            raise _refusal(text, _column(node), str(error).replace(".__init__()", "()")) from None
    if _name(node) == "FIRST_DIVISIBLE_DIM":
        from partir.tactics import FIRST_DIVISIBLE_DIM

        return FIRST_DIVISIBLE_DIM
    if isinstance(node, ast.Dict):
        pairs = [(key, value) for key, value in zip(node.keys, node.values, strict=True) if key is not None]
        return {_value(key, text): _value(value, text) for key, value in pairs}
    if isinstance(node, ast.List):
        return [_value(item, text) for item in node.elts]
    if isinstance(node, ast.Tuple):
        return tuple(_value(item, text) for item in node.elts)
    try:
        return ast.literal_eval(node)
    except ValueError:
        raise _refusal(
            text, _column(node), f"{ast.unparse(node)} is not a literal", "text, numbers, None, tuples, lists and dicts"
        ) from None


def _name(node: ast.expr) -> str | None:
    """The name in `Megatron`, `partir.Megatron` or `jax.P`; None for any other expression."""
    if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id in ("partir", "jax"):
        return node.attr
    return node.id if isinstance(node, ast.Name) else None


def _column(node: ast.expr) -> int:
    return node.col_offset - 1


def _refusal(text: str, column: int, why: str, hint: str = "") -> ProgramError:
    column = min(column, len(text))
    return ProgramError(
        error_text(
            "cannot read the schedule",
            where=f"column {column + 1}: {shortened(text[column:]) or 'the end'}",
            why=why,
            hint=hint or "DataParallel('data'), Megatron('model')",
        )
    )


def shortened(text: str, limit: int = 60) -> str:
    """Text on one line of at most `limit` characters."""
    line = " ".join(text.split())
    return line if len(line) <= limit else f"{line[: limit - 3]}..."
