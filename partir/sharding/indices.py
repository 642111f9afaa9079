"""The numberings of a program's parts. Each is an int with a name, so that the type checker refuses one for another.

A matmul `y = x @ w` with x [16, 8] and w [8, 32] is one row; its values, atoms, factors and nodes are numbered so:

    value   0: x           1: w           2: y              arguments first, then results in program order
    atom    0, 1           2, 3           4, 5              the indivisible parts of dims, value by value
    factor  0: i (16)  1: j (32)  2: k (8)                  the index letters of the rows' rules, row by row
    node    0..5 the atoms, 6..8 the factors                atoms and factors in one numbering, for the union-find
    class   0: {x:0, y:0, i}  1: {x:1, w:0, k}  2: {w:1, y:1, j}

Conversions between them are methods of `Atoms` (`factor_id`, `local_factor`, `node_of_factor`) and `Classes` (`of_row`,
`class_of`). They cost nothing: annotate what is numbered, and cast where numbers come in.
"""

from typing import NewType

import numpy as np
import numpy.typing as npt

IntArray = npt.NDArray[np.int64]
"""Any of these, or a count, for each of something: a comment says of what, as in `[rows] int64`."""

ValueIndex = NewType("ValueIndex", int)
"""A value of the program, in `Tables.values`: arguments first (so this is an argument's number, too), then every result."""

RowIndex = NewType("RowIndex", int)
"""An op that is partitioned, or a value that control flow carries, in `Tables.rows`, in program order."""

Reader = NewType("Reader", int)
"""What reads a value: a row by its `RowIndex`, or result r of the program as -1 - r."""

RegionId = NewType("RegionId", int)
"""A region of control flow, in `Tables.parent` and `Tables.trips`; 0 is the function itself."""

NO_ROW = RowIndex(-1)
"""What makes an argument: no row."""

ROOT = RegionId(0)
"""The function itself, outside all control flow."""

AtomIndex = NewType("AtomIndex", int)
"""An indivisible part of a dim, among those of all values: `Atoms.start[value]` is the first of a value."""

FactorId = NewType("FactorId", int)
"""A factor among those of all rows, as `Classes.of_factor` has them: `Atoms.factor_start[row]` is the first of a row."""

LocalFactor = NewType("LocalFactor", int)
"""A factor among those of its own row, as `OpShape.sizes` and `OpShape.slots` have them."""

NodeId = NewType("NodeId", int)
"""An atom, or a factor counted after all atoms: what `Classes.of_node` puts into classes."""

ClassId = NewType("ClassId", int)
"""A dimension class, in `Classes.size`: the atoms and factors of the program that are sharded together."""

CLOSED = ClassId(-1)
"""In place of a class: that of a factor that cannot be cut."""
