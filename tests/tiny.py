"""Tiny programs and what is decided of them, for tests that look at one module of the planner: nothing is compiled or run."""

from collections.abc import Callable
from typing import Any

import jax

import partir
from partir.mesh import Mesh
from partir.sharding import plan
from partir.sharding.actions import Action
from partir.sharding.assignment import Assignment
from partir.sharding.indices import ValueIndex
from partir.sharding.plan import Plan


def undecided(fun: Callable[..., Any], *shapes: Any, donated: tuple[int, ...] = (), **mesh: int) -> Assignment:
    """The assignment of a function of float32 arrays of these shapes, with nothing decided; a mesh of a=2, b=2 unless said."""
    of_mesh = Mesh(**mesh or {"a": 2, "b": 2})
    args = [jax.tree.map(_array, shape, is_leaf=lambda s: isinstance(s, tuple)) for shape in shapes]
    return Assignment(partir.jit(fun, mesh=of_mesh, donate_argnums=donated).trace(*args).structure, of_mesh)


def _array(shape: tuple[int, ...]) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(shape, "float32")


def planned(assignment: Assignment, *actions: Action) -> Plan:
    """What is owed after further actions."""
    return plan.make(assignment.apply(*actions))


def value(assignment: Assignment, address: str) -> ValueIndex:
    """The number of a value: an argument by name, another as `@forward:add.0`."""
    return assignment.structure.addresses.find(address)


def result_of(assignment: Assignment, op: str, ordinal: int = 0) -> ValueIndex:
    """The number of the value that an op of the forward pass makes."""
    return value(assignment, f"@forward:{op}.{ordinal}")
