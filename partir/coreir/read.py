"""Core IR to an assignment: the program without loops, under the actions that the module carries, held to its loops."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from xdsl.dialects.builtin import ArrayAttr, DictionaryAttr, ModuleOp
from xdsl.dialects.func import FuncOp

from partir.collector import paused
from partir.coreir import boundary
from partir.coreir.compare import check_same
from partir.coreir.erase_loops import erase_loops, where_of
from partir.dialect.core import ActionsAttr, LoopOp
from partir.errors import IRError, error_text
from partir.mesh import Mesh
from partir.program import Leaf
from partir.sharding import plan as plan_
from partir.sharding.actions import Action, Replicate, Tile
from partir.sharding.assignment import Assignment, Fixed
from partir.sharding.layout import Axes, Layout, spec_of
from partir.sharding.structure import Structure


@paused()
def read_core(module: ModuleOp) -> Assignment:
    """The assignment a Core module is written from.

    A module without loops and actions is a program on which nothing is decided yet but what its arguments' shardings and its
    sharding constraints say. Raises IRError for loops without actions, and for loops that are not those the actions make.
    """
    mesh, main = boundary.mesh_of(module), boundary.main_of(module)
    actions = boundary.actions_of(module)
    if actions is None:
        _check_free_of_loops(module)
    erased = erase_loops(module)
    structure = Structure.of(erased.program)
    if actions is None:
        return _undecided(structure, main, mesh)
    leaves = structure.program.signature.results
    entries = boundary.entries(main.res_attrs, len(leaves))
    said = [boundary.fixed_read(entry, mesh, leaf.name) for entry, leaf in zip(entries, leaves, strict=True)]
    fixed = [_checked(result, axes, leaves[result], mesh) for result, axes in enumerate(said) if axes is not None]
    assignment = Assignment(structure, mesh, outputs=tuple(fixed)).apply(*actions)
    check_same(main, erased, plan_.make(assignment))
    return assignment


def _check_free_of_loops(module: ModuleOp) -> None:
    loop = next((op for op in module.walk() if isinstance(op, LoopOp)), None)
    if loop is not None:
        raise IRError(
            error_text(
                "the module has loops, but not the actions that make them",
                where=where_of(loop),
                why=f"loops do not say who decided what: {ActionsAttr.KEY} on the module does",
                hint="write it with `partir show --ir core`, or with the passes that decide (partir-tile, ...), on a module "
                "without loops (partir-erase-loops)",
            )
        )


def _undecided(structure: Structure, main: FuncOp, mesh: Mesh) -> Assignment:
    """The start of a module without actions: what its arguments, its constraints and its results say."""
    names, signature = structure.addresses.names, structure.program.signature
    arguments = _shardings(main.arg_attrs, signature.arguments, mesh)
    actions: list[Action] = [Replicate(names[i], axis) for i, (_, whole) in enumerate(arguments) for axis in whole]
    for i, (axes, _) in enumerate(arguments):
        actions += [Tile(names[i], dim, axis) for dim, own in enumerate(axes or ()) for axis in own]
    assignment = Assignment(structure, mesh).apply(*actions, *structure.wishes(mesh).actions)
    leaving = plan_.make(assignment).outputs
    fixed = [
        _checked(result, axes, signature.results[result], mesh)
        for result, (axes, _) in enumerate(_shardings(main.res_attrs, signature.results, mesh))
        if axes is not None and axes != _dim_axes(leaving[result])
    ]
    return replace(assignment, outputs=tuple(fixed))


def _shardings(
    attrs: ArrayAttr[DictionaryAttr] | None, leaves: Sequence[Leaf], mesh: Mesh
) -> list[tuple[list[Axes] | None, Axes]]:
    """What the attributes of arguments or results say of each: the axes of its dims, and those it is replicated over."""
    entries = boundary.entries(attrs, len(leaves))
    return [boundary.axes_read(entry, mesh, leaf.name) for entry, leaf in zip(entries, leaves, strict=True)]


def _checked(result: int, axes: Sequence[Axes | None], leaf: Leaf, mesh: Mesh) -> tuple[int, Fixed]:
    """A result that leaves otherwise than the plan would have it, fixed, as by `out_shardings`."""
    problem = "" if len(axes) == len(leaf.shape) else f"{len(axes)} dims are sharded, it has {len(leaf.shape)}"
    for size, own in zip(leaf.shape, axes, strict=False):
        if own and size % mesh.size_of(*own):
            problem = problem or f"{size} does not divide by the {mesh.size_of(*own)} devices of {', '.join(own)}"
    if problem:
        raise IRError(error_text(f"result {result} cannot be sharded as it says", where=repr(leaf), why=problem))
    return result, tuple(axes)


def _dim_axes(layout: Layout) -> list[Axes]:
    """The axes of each dim of a layout that a sharding can say."""
    entries: list[Axes] = [() if e is None else (e,) if isinstance(e, str) else e for e in spec_of(layout)]
    return entries + [()] * (len(layout) - len(entries))
