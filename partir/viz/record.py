"""Reports as plain data for `--json`: all that the tables show, and the rows that they leave out."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from partir.cost.estimate import Estimate, estimate
from partir.cost.target import Target
from partir.program import ScopeTree
from partir.sharding.assignment import Assignment
from partir.sharding.layout import spec_of
from partir.sharding.plan import Plan
from partir.viz.inventory import argument_classes
from partir.viz.report import argument_bytes, collectives_by_scope, conflict_lines, replicated_lines, sharded_arguments


def record_of(history: Sequence[tuple[str, Plan]], target: Target | None = None) -> dict[str, Any]:
    """A partitioned program, given its plan after each tactic; with a target, the cost of a step after each."""
    plan = history[-1][1]
    assignment = plan.assignment
    program = assignment.structure.program
    return {
        "program": program.name,
        "mesh": dict(assignment.mesh.axes),
        "tactics": tactics_record(history, target),
        "collectives": plan.collectives,
        "collectives_by_scope": collectives_by_scope(plan),
        "arguments": arguments_record(plan),
        "scopes": scopes_record(program.scopes),
        "classes": classes_record(assignment),
        "conflicts": conflict_lines(assignment),
        "replicated": replicated_lines(plan),
    }


def tactics_record(history: Sequence[tuple[str, Plan]], target: Target | None = None) -> list[dict[str, Any]]:
    """For each tactic, the state after it: sharded arguments, bytes, collectives; with a target, the cost of a step."""
    return [
        {
            "tactic": name,
            "sharded_arguments": sharded_arguments(plan),
            "argument_bytes_per_device": argument_bytes(plan),
            "collectives": plan.collectives,
            **(estimate_record(estimate(plan, target)) if target is not None else {}),
        }
        for name, plan in history
    ]


def estimate_record(found: Estimate) -> dict[str, Any]:
    """The totals of an estimate: seconds of a step; bytes and floating-point operations of one device."""
    return {
        "target": found.target.name,
        "step_seconds": found.step_seconds,
        "compute_seconds": found.compute_seconds,
        "communication_seconds": found.communication_seconds,
        "peak_bytes": found.peak_bytes,
        "flops": found.flops,
        "communicated_bytes": found.communicated_bytes,
    }


def arguments_record(plan: Plan) -> list[dict[str, Any]]:
    """Every argument with its spec: per dim None, an axis, or a list of axes; trailing Nones are left out."""
    leaves = plan.assignment.structure.program.signature.arguments
    return [
        {
            "path": leaf.name,
            "dtype": leaf.dtype,
            "shape": leaf.shape,
            "role": leaf.role,
            "donated": leaf.donated,
            "spec": spec_of(layout),
        }
        for leaf, layout in zip(leaves, plan.arguments, strict=True)
    ]


def scopes_record(tree: ScopeTree) -> dict[str, Any]:
    """The tree of scopes, each with the number of ops directly in it."""
    return {"name": tree.name, "ops": tree.ops, "scopes": [scopes_record(child) for child in tree.children.values()]}


def classes_record(assignment: Assignment) -> list[dict[str, Any]]:
    """The dimension classes that have dims of arguments, each with its (argument, dim) pairs."""
    names = assignment.structure.addresses.names
    return [
        {
            "size": assignment.classes.size[class_],
            "axes": assignment.axes_of_class(class_),
            "arguments": [(names[argument], dim) for argument, dim, _ in members],
        }
        for class_, members in argument_classes(assignment)
    ]
