"""`partir.targets`: machines by name, and `Target` to describe one's own."""

from partir.cost.targets import Efficiency, Target, Wires, get, names

__all__ = ["Efficiency", "Target", "Wires", "get", "names"]
