"""A program with its repeated parts taken once: what search plans on, so that 96 layers cost what one layer costs.

Rows that look the same as far as a few ops around them share a colour; of each colour the first row is kept, and reads the
first value of each colour that it read. Of layers `h1 = tanh(h0 @ w1)`, `h2 = tanh(h1 @ w2)`, `h3 = tanh(h2 @ w3)`, ...:

    at first      all matmuls have one colour, all tanhs another: from the op, its rule, its scope without numbers, its classes
    each round    a colour becomes that of a row, of its operands and of what reads its results; w1, w2, ... look alike as
                  long as their readers do, and the first matmul, which reads an input, differs from the others
    at the end    the first matmul of each colour stands for its like, the first w of each colour for its

The result is a `Structure` like any other, so assignments and plans on it are made by the same code (`cost/unfolding.py` says
where in the full program each collective of such a plan happens). Colours look `ROUNDS` ops far, a plan sometimes farther: it
is a model of the program for comparing decisions, and what is chosen is planned once more on the full program.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from partir.program import Signature
from partir.sharding.actions import Action, Addresses, GatherOnce, ReduceIn, Replicate
from partir.sharding.assignment import Assignment
from partir.sharding.atoms import Atoms
from partir.sharding.indices import NO_ROW, ClassId, IntArray, Reader, RowIndex, ValueIndex
from partir.sharding.linear import splat_of
from partir.sharding.scopes import without_numbers
from partir.sharding.structure import Structure
from partir.sharding.tables import Control, OpRow, RegionItems, View

ROUNDS = 4
"""How many ops far a colour looks, in both directions."""


@dataclass(eq=False)
class Folded:
    """A smaller program, and which of its parts stand for those of the whole."""

    whole: Assignment
    structure: Structure
    """The smaller program."""
    start: Assignment
    """The assignment of the whole, on the smaller program."""
    row_of: IntArray
    """[rows of the whole] int64: the row that stands for each."""
    value_of: IntArray
    """[values of the whole] int64: the value that stands for each; -1 for views and for what is made again at each use."""
    result_of: IntArray
    """[results of the whole] int64: the result that stands for each."""

    def assigned(self, other: Assignment) -> Assignment:
        """Another assignment of the whole program, as `structure` says it."""
        return replace(self.start, actions=_translated(other, self.value_of, self.structure.addresses.names))


def fold(whole: Assignment) -> Folded:
    """Take the repeated parts of a program once, as far as the decisions of `whole` are alike in them."""
    structure = whole.structure
    painter = _Painter(whole)
    row_colours, value_colours = painter.run()
    tables = structure.tables
    first_rows, row_of = _first_of(row_colours)
    made = [v for v in tables.each_value() if value_colours[v] >= 0]
    first_values, among = _first_of([value_colours[v] for v in made])
    value_of = np.full(len(tables.values), -1, dtype=np.int64)
    value_of[made] = among
    kept_rows = [RowIndex(row) for row in first_rows]
    smaller = _Smaller(whole, kept_rows, [made[k] for k in first_values], row_of, value_of)
    made_smaller = smaller.structure()
    outputs = tuple((smaller.results.index(result), axes) for result, axes in whole.outputs if result in smaller.results)
    start = Assignment(made_smaller, whole.mesh, _translated(whole, value_of, made_smaller.addresses.names), outputs)
    results = np.array(smaller.result_of, dtype=np.int64)
    return Folded(whole=whole, structure=made_smaller, start=start, row_of=row_of, value_of=value_of, result_of=results)


def _first_of(colours: Sequence[int]) -> tuple[list[int], IntArray]:
    """The first place of each colour, in order, and for each place the number of its colour in that order [places] int64.

    >>> _first_of([7, 3, 7, 3, 9])
    ([0, 1, 4], array([0, 1, 0, 1, 2]))
    """
    _, first, inverse = np.unique(np.asarray(colours, dtype=np.int64), return_index=True, return_inverse=True)
    order = np.argsort(first, kind="stable")
    rank = np.empty(len(order), dtype=np.int64)
    rank[order] = np.arange(len(order))
    return first[order].tolist(), rank[inverse.reshape(-1)]


def _translated(whole: Assignment, value_of: IntArray, names: list[str]) -> tuple[Action, ...]:
    """The actions of an assignment as the smaller program says them, each once."""
    find, views = whole.structure.addresses.find, whole.structure.tables.views
    found: dict[Action, None] = {}
    for action in whole.actions:
        if isinstance(action, ReduceIn):
            found.pop(action, None)  # the last one counts
            found[action] = None
            continue
        value = find(action.value)
        has_dim = not isinstance(action, Replicate | GatherOnce)
        dim = whole.dim_of(value, action.dim) if has_dim else -1
        if value in views:
            value, dim = views[value].source, views[value].dims[dim] if dim >= 0 else -1
        if value_of[value] < 0 or (dim < 0 and has_dim):
            continue
        name = names[int(value_of[value])]
        found[replace(action, value=name, dim=dim) if has_dim else replace(action, value=name)] = None
    return tuple(found)


class _Painter:
    """Colours of rows and values: first from what they are, then a few rounds of what is around them.

    A colour is a number: each key that is met for the first time gets the next one (`number`).
    """

    def __init__(self, whole: Assignment) -> None:
        self.whole = whole
        self.tables, self.atoms = whole.structure.tables, whole.structure.atoms
        self.numbers: dict[Hashable, int] = {}
        self.labels = self._labels()

    def number(self, key: Hashable) -> int:
        """The colour of whatever has this key."""
        return self.numbers.setdefault(key, len(self.numbers))

    def run(self) -> tuple[list[int], list[int]]:
        """A colour for each row, and for each value (-1: it is a view, or constant-like)."""
        tables = self.tables
        rows = self._rows()
        arguments = self._arguments()
        pairs = tables.program.signature.state
        after = {argument: tables.outputs[result] for argument, result in pairs}
        before = tables.program.signature.argument_of_result
        for _ in range(ROUNDS):
            values = self._values(rows, arguments)
            around = [self._uses(v, rows, arguments, before) if values[v] >= 0 else 0 for v in tables.each_value()]
            rows = [
                self.number(
                    (
                        rows[position],
                        tuple([values[view.source] if view is not None else -1 for view in row.operands]),
                        tuple([around[result] for result in row.results]),
                    )
                )
                for position, row in enumerate(tables.rows)
            ]
            arguments = [
                self.number((colour, around[a], values[view.source] if (view := after.get(a)) is not None else -1))
                for a, colour in enumerate(arguments)
            ]
        return rows, self._values(rows, arguments)

    def _values(self, rows: list[int], arguments: list[int]) -> list[int]:
        """[values] a colour from that of the row which makes it, and its place among the results; -1 for views."""
        values = [-1] * len(self.tables.values)
        values[: len(arguments)] = [self.number(("argument", colour)) for colour in arguments]
        for colour, row in zip(rows, self.tables.rows, strict=True):
            for k, result in enumerate(row.results):
                values[result] = self.number((colour, k))
        return values

    def _uses(self, value: ValueIndex, rows: list[int], arguments: list[int], before: dict[int, int]) -> int:
        """A colour for what reads a value, and as which operand; a result of the program as the argument it goes to."""
        seen: list[tuple[int, int]] = []
        for position, slot in self.tables.uses[value]:
            if position >= 0:
                seen.append((rows[position], slot))
            else:
                paired = before.get(-1 - position)
                seen.append((-1, arguments[paired]) if paired is not None else (-2, -1 - position))
        seen.sort()
        return self.number(tuple(seen))

    def _labels(self) -> list[int]:
        """[classes] a number for its group and the axes that it is claimed on; classes in no group stand alone."""
        whole = self.whole
        group_of = {class_: group.classes[0] for class_, group in whole.group_of.items()}
        claims = whole.reach
        taken = np.stack([claims.divides[axis] for axis in whole.mesh.names]) if whole.mesh.names else np.zeros((0, 1))
        return [
            self.number(("class", group_of.get(ClassId(c), -1 - c), tuple(taken[:, c].tolist())))
            for c in range(whole.classes.count)
        ]

    def _rows(self) -> list[int]:
        """[rows] the first colours: from the op, its rule and splits, its scope without numbers, its classes' labels."""
        tables, atoms, labels = self.tables, self.atoms, [*self.labels, -1]
        classes = self.whole.classes
        plain: dict[str, str] = {}
        held = self.whole.structure.wishes(self.whole.mesh).held
        colours: list[int] = []
        for position, row in tables.each_row():
            if self._stands_alone(row):
                colours.append(self.number(("row", position)))
                continue
            scope = tables.scope(row)
            name = plain.get(scope)
            if name is None:
                name = plain[scope] = without_numbers(scope)
            shape = atoms.shapes[position]
            key = (
                row.op.name,
                id(shape),
                row.kind,
                tables.phase(row),
                name,
                tuple([labels[c] for c in classes.of_row(position)]),
                tuple([view.dims if view is not None else self._constant_like(row, k) for k, view in enumerate(row.operands)]),
                tuple([id(attr) for attr in row.op.properties.values()]),
                tuple([id(r.type) for r in row.op.results]),
                tuple(held.get(position, {}).items()),
            )
            colours.append(self.number(key))
        return colours

    def _constant_like(self, row: OpRow, slot: int) -> Hashable:
        """What is known of a constant-like operand: its one value, else the kind of op it comes from."""
        value = row.op.operands[slot]
        splat = splat_of(value)
        return splat.data.data if splat is not None else str(getattr(value.owner, "name", ""))

    @staticmethod
    def _stands_alone(row: OpRow) -> bool:
        """Rows in loops and branches, and what those carry, are taken one by one: a scanned stack is one layer already."""
        return bool(row.region or row.captured or (row.kind in ("carry", "predicate") and row.op.regions))

    def _arguments(self) -> list[int]:
        """[arguments] the first colours: from role, shape, dtype, its classes' labels and what is asked of it alone."""
        whole, atoms = self.whole, self.atoms
        pinned: dict[ValueIndex, set[str]] = {}
        for action in whole.actions:
            if isinstance(action, Replicate):
                pinned.setdefault(whole.structure.addresses.find(action.value), set()).add(action.axis)
        of_node = whole.classes.of_node.tolist()
        colours: list[int] = []
        for argument in self.tables.arguments:
            leaf = self.tables.program.signature.arguments[argument]
            first = atoms.start[argument]
            labels = tuple([self.labels[c] for c in of_node[first : first + atoms.count_of(argument)]])
            fixed = tuple(sorted(whole.pinned.get(argument, {}).items()))
            pins = (*sorted(pinned.get(argument, ())), fixed, argument in whole.gathered_once)
            colours.append(self.number((leaf.role, leaf.donated, leaf.shape, leaf.dtype, labels, pins)))
        return colours


class _Smaller:
    """The structure of the rows and values that are kept, renumbered."""

    def __init__(
        self, whole: Assignment, kept_rows: list[RowIndex], kept_values: list[ValueIndex], row_of: IntArray, value_of: IntArray
    ) -> None:
        self.whole = whole
        self.old = whole.structure.tables
        self.kept_rows, self.kept_values = kept_rows, kept_values
        self.new_row = {old: RowIndex(new) for new, old in enumerate(kept_rows)}
        self.new_value = {old: ValueIndex(new) for new, old in enumerate(kept_values)}
        self.row_of, self.value_of = row_of, value_of
        self.results: list[int] = []
        self.result_of = self._results()

    def structure(self) -> Structure:
        """The smaller program."""
        old, kept = self.old, self.kept_values
        signature = self._signature()
        values = [old.values[v] for v in kept]
        producer = [NO_ROW] * len(kept)
        rows: list[OpRow] = []
        for position in self.kept_rows:
            row = old.rows[position]
            results = tuple(self.new_value[r] for r in row.results)
            for result in results:
                producer[result] = RowIndex(len(rows))
            captured = tuple(ValueIndex(int(self.value_of[v])) for v in row.captured)
            rows.append(replace(row, operands=tuple(map(self._view, row.operands)), results=results, captured=captured))
        tables = replace(
            old,
            program=replace(old.program, signature=signature),
            values=values,
            shapes=[old.shapes[v] for v in kept],
            rows=rows,
            outputs=[self._view(old.outputs[r]) for r in self.results],
            views={},
            index_of={value: ValueIndex(i) for i, value in enumerate(values)},
            argument_count=len(signature.arguments),
            producer=producer,
            root=replace(self._items(old.root), returns=tuple(old.root.returns[r] for r in self.results)),
            region_of=[old.region_of[v] for v in kept],
        )
        tables.uses = self._uses()
        addresses = self.whole.structure.addresses
        names = _Names(tables, addresses, self.value_of, [addresses.names[v] for v in kept])
        return Structure(tables.program, tables, self._atoms(), names, can_join=False)

    def _view(self, view: View | None) -> View | None:
        return View(ValueIndex(int(self.value_of[view.source])), view.dims) if view is not None else None

    def _results(self) -> list[int]:
        """For each result, which of those kept stands for it: of those that hand on the state of one argument, the first."""
        old, fixed = self.old.program.signature, dict(self.whole.outputs)
        seen: dict[Hashable, int] = {}
        result_of: list[int] = []
        for result, view in enumerate(self.old.outputs):
            paired = old.argument_of_result.get(result)
            alike = paired is not None and view is not None
            key: Hashable = (int(self.value_of[paired]), self._view(view), fixed.get(result)) if alike else result
            if key not in seen:
                seen[key] = len(self.results)
                self.results.append(result)
            result_of.append(seen[key])
        return result_of

    def _uses(self) -> list[list[tuple[Reader, int]]]:
        """Who reads the first value of each colour, not who reads any of them: what is decided looks at all its readers."""
        row_of, result_of = self.row_of.tolist(), self.result_of
        return [
            [(Reader(row_of[r] if r >= 0 else -1 - result_of[-1 - r]), max(slot, -1)) for r, slot in self.old.uses[value]]
            for value in self.kept_values
        ]

    def _signature(self) -> Signature:
        """The arguments and results that are kept."""
        old = self.old.program.signature
        count = self.old.argument_count
        before = old.argument_of_result
        state = tuple((int(self.value_of[before[result]]), new) for new, result in enumerate(self.results) if result in before)
        arguments = tuple(old.arguments[v] for v in self.kept_values if v < count)
        return Signature(arguments, tuple(old.results[r] for r in self.results), state)

    def _items(self, region: RegionItems) -> RegionItems:
        """What is kept of what runs in a region."""
        items: list[RowIndex | Control] = []
        for item in region.items:
            if isinstance(item, int):
                if item in self.new_row:
                    items.append(self.new_row[item])
                continue
            carries = tuple(self.new_row[c] for c in item.carries if c in self.new_row)
            inner = tuple(self._items(r) for r in item.regions)
            if carries or inner:
                predicate = self.new_row[item.predicate] if item.predicate is not None else None
                items.append(replace(item, carries=carries, regions=inner, predicate=predicate))
        arguments = tuple(self.new_value[a] for a in region.arguments)
        return replace(region, items=items, arguments=arguments)

    def _atoms(self) -> Atoms:
        """The atoms and factors of what is kept, as the whole has them."""
        old = self.whole.structure.atoms
        sizes = [old.sizes_of[v] for v in self.kept_values]
        start = np.cumsum([0, *(sum(map(len, dims)) for dims in sizes)]).tolist()
        shapes = [old.shapes[r] for r in self.kept_rows]
        factors = np.cumsum([0, *(len(shape.sizes) for shape in shapes)]).tolist()
        return Atoms(
            sizes_of=sizes,
            start=start[:-1],
            atom_count=start[-1],
            shapes=shapes,
            factor_start=factors[:-1],
            factor_count=factors[-1],
        )


@dataclass(eq=False)
class _Names(Addresses):
    """The addresses of the kept values, as the whole program has them; one of another value means what stands for it."""

    whole: Addresses
    value_of: IntArray
    kept: list[str]

    @cached_property
    def names(self) -> list[str]:
        return self.kept

    def find(self, address: str) -> ValueIndex:
        return ValueIndex(int(self.value_of[self.whole.find(address)]))
