"""Reads Core IR as an assignment: erases the loops, applies the module's actions, and checks that they make the same loops."""

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
    """The assignment that a Core IR module was written from.

    In a module without loops and actions, only the shardings of arguments and results and the sharding constraints decide.
    Raises IRError for loops without actions, and for loops that differ from those that the actions make.
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
    given = [boundary.fixed_read(entry, mesh, leaf.name) for entry, leaf in zip(entries, leaves, strict=True)]
    fixed = [_checked(result, axes, leaves[result], mesh) for result, axes in enumerate(given) if axes is not None]
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
    """The assignment of a module without actions: the shardings of its arguments and results, and its sharding constraints."""
    names, signature = structure.addresses.names, structure.program.signature
    arguments = _shardings(main.arg_attrs, signature.arguments, mesh)
    actions: list[Action] = [Replicate(names[i], axis) for i, (_, over) in enumerate(arguments) for axis in over]
    for i, (axes, _) in enumerate(arguments):
        actions += [Tile(names[i], dim, axis) for dim, own in enumerate(axes or ()) for axis in own]
    assignment = Assignment(structure, mesh).apply(*actions, *structure.wishes(mesh).actions)
    outputs = plan_.make(assignment).outputs
    # A result is fixed only if its sharding differs from the one that the plan gives it anyway.
    fixed = [
        _checked(result, axes, signature.results[result], mesh)
        for result, (axes, _) in enumerate(_shardings(main.res_attrs, signature.results, mesh))
        if axes is not None and axes != _dim_axes(outputs[result])
    ]
    return replace(assignment, outputs=tuple(fixed))


def _shardings(
    attrs: ArrayAttr[DictionaryAttr] | None, leaves: Sequence[Leaf], mesh: Mesh
) -> list[tuple[list[Axes] | None, Axes]]:
    """For each argument or result: the axes of its dims (None without a sharding), and the axes it is replicated over."""
    entries = boundary.entries(attrs, len(leaves))
    return [boundary.axes_read(entry, mesh, leaf.name) for entry, leaf in zip(entries, leaves, strict=True)]


def _checked(result: int, axes: Sequence[Axes | None], leaf: Leaf, mesh: Mesh) -> tuple[int, Fixed]:
    """A fixed result, as by `out_shardings`: its number and the axes of its dims. Raises IRError if they do not fit it."""
    problem = "" if len(axes) == len(leaf.shape) else f"{len(axes)} dims are sharded, it has {len(leaf.shape)}"
    for size, own in zip(leaf.shape, axes, strict=False):
        if own and size % mesh.size_of(*own):
            problem = problem or f"{size} does not divide by the {mesh.size_of(*own)} devices of {', '.join(own)}"
    if problem:
        raise IRError(error_text(f"result {result} cannot be sharded as it says", where=repr(leaf), why=problem))
    return result, tuple(axes)


def _dim_axes(layout: Layout) -> list[Axes]:
    """The axes of each dim of a layout that can be written as a PartitionSpec."""
    entries: list[Axes] = [() if e is None else (e,) if isinstance(e, str) else e for e in spec_of(layout)]
    return entries + [()] * (len(layout) - len(entries))
