"""What the tables show, and what they leave out, as plain data for `--json`."""

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
    """A partitioned program, given its plan after each tactic; with a target, what a step costs on it."""
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
    """What holds after each tactic; with a target, what a step costs on it."""
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
    """The sums of an estimate: seconds of a step, bytes and operations of one device."""
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
    """The tree of scopes, each with the ops directly in it."""
    return {"name": tree.name, "ops": tree.ops, "scopes": [scopes_record(child) for child in tree.children.values()]}


def classes_record(assignment: Assignment) -> list[dict[str, Any]]:
    """The dimension classes that touch arguments, each with the (argument, dim) pairs in it."""
    names = assignment.structure.addresses.names
    return [
        {
            "size": assignment.classes.size[class_],
            "axes": assignment.axes_of_class(class_),
            "arguments": [(names[argument], dim) for argument, dim, _ in members],
        }
        for class_, members in argument_classes(assignment)
    ]
