"""`partir.targets`: machines by name, `Target` to describe one's own, and targets as files."""

from partir.cost.target_file import load, save
from partir.cost.targets import Efficiency, Target, Wires, get, names

__all__ = ["Efficiency", "Target", "Wires", "get", "load", "names", "save"]
