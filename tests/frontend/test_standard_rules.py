"""The rules we give ops of hand-written text are those Shardy gives them, up to the names of factors."""

import pytest
from programs import PROGRAMS

from partir.dialect.sdy import OpShardingRuleAttr
from partir.frontend.rules import rule_for, standard_rule
from partir.frontend.trace import trace

pytestmark = pytest.mark.jax


def canonical(rule: OpShardingRuleAttr) -> object:
    """Factors numbered as they appear; those of one element left out."""
    number: dict[int, int] = {}

    def named(tensors: object) -> object:
        return [
            [[number.setdefault(f, len(number)) for f in factors if rule.sizes[f] > 1] for factors in dims] for dims in tensors
        ]

    operands, results = named(rule.operands), named(rule.results)
    sizes = {new: rule.sizes[old] for old, new in number.items()}
    return operands, results, sizes, {number[f] for f in rule.reduction if f in number}


def test_standard_rules_are_those_of_shardy():
    compared: set[str] = set()
    for example in PROGRAMS.values():
        for op in trace(example.fun, example.args, {}).module.walk():
            ours, shardys = standard_rule(op), op.attributes.get(OpShardingRuleAttr.KEY)
            if ours is None or rule_for(op) is not None or not isinstance(shardys, OpShardingRuleAttr):
                continue
            compared.add(op.name)
            assert canonical(ours) == canonical(shardys), f"{op.name}: {ours}, but Shardy says {shardys}"

    assert {f"stablehlo.{name}" for name in ("add", "dot_general", "broadcast_in_dim", "reduce", "transpose")} <= compared
