"""Tables of what is in a program: its scopes, its dimension classes, and its collectives by scope."""

from __future__ import annotations

from partir.program import ScopeTree
from partir.sharding.assignment import Assignment
from partir.sharding.indices import ClassId, ValueIndex
from partir.sharding.plan import COLLECTIVES, Plan
from partir.viz.repeats import Repeated, together
from partir.viz.report import collectives_by_scope
from partir.viz.table import Table


def scopes_table(tree: ScopeTree) -> Table:
    """A row per named scope, indented by nesting, with the number of ops in it; repeated layers share a row."""
    names: list[str] = []
    ops: list[int] = []

    def visit(node: ScopeTree, path: str) -> None:
        for child in node.children.values():
            names.append(f"{path}{child.name}")
            ops.append(child.total)
            visit(child, f"{path}{child.name}/")

    visit(tree, "")
    rows = [("(program)", "", str(tree.total))]
    for repeated in together(names, [()] * len(names)):
        level, total = repeated.name.rpartition("/")[2], sum(ops[row] for row in repeated.rows)
        indent = "  " * (1 + repeated.name.count("/"))
        rows.append((f"{indent}{level}", _times(repeated), str(total)))
    return Table("scopes", ("scope", "times", "ops in all"), tuple(rows), right=frozenset({"times", "ops in all"}))


def argument_classes(assignment: Assignment) -> list[tuple[ClassId, list[tuple[ValueIndex, int, int]]]]:
    """The dimension classes that have dims of arguments, each with its (argument, dim, number of the atom) triples in order."""
    return [(ClassId(class_), members) for class_, members in enumerate(assignment.classes.arguments_by_class) if members]


def classes_table(assignment: Assignment, *, brief: bool = True) -> Table:
    """A row per dimension class that has dims of arguments: its size (and the atoms of the dim that it is part of), the axes it
    is sharded over, and the number of dims of arguments in it. `brief` puts the same class of repeated layers into one row."""
    structure = assignment.structure
    names: list[str] = []
    cells: list[tuple[str, str, str]] = []
    for class_, members in argument_classes(assignment):
        argument, dim, _ = members[0]
        size, parts = assignment.classes.size[class_], structure.atoms.sizes_of[argument][dim]
        names.append(f"{structure.addresses.names[argument]}:{dim}")
        cells.append(
            (
                str(size) if len(parts) == 1 else f"{size} of {'x'.join(map(str, parts))}",
                ", ".join(assignment.axes_of_class(class_)),
                str(len(members)),
            )
        )
    if brief:
        rows = [(r.name, _times(r), *map(str, r.cells)) for r in together(names, cells)]
    else:
        rows = [(name, "", *own) for name, own in zip(names, cells, strict=True)]
    return Table(
        "dimension classes, each named by the first argument:dim in it",
        ("class", "times", "size", "axes", "argument dims"),
        tuple(rows),
        right=frozenset({"times", "argument dims"}),
    )


def scope_collectives_table(plan: Plan) -> Table:
    """A row per scope (and phase) with the collectives that its ops need (one row for repeated layers), and their total."""
    found = collectives_by_scope(plan)
    kinds = [kind for kind in COLLECTIVES if kind in plan.collectives]
    repeated = together(list(found), [tuple(own.get(kind, 0) for kind in kinds) for own in found.values()])
    rows = [(r.name, _times(r), *(str(cell or "") for cell in r.cells)) for r in repeated]
    rows.append(("in all", "", *(str(plan.collectives[kind]) for kind in kinds)))
    return Table(
        "collectives by scope" if kinds else "no collectives",
        ("scope", "times", *kinds),
        tuple(rows if kinds else ()),
        right=frozenset({"times", *kinds}),
    )


def _times(repeated: Repeated) -> str:
    return str(repeated.count) if repeated.count > 1 else ""
