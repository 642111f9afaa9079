"""The public module `partir.targets`: known machines by name, `Target` to describe another one, and targets as files."""

from partir.cost.registry import get, names
from partir.cost.target import Efficiency, Target, Wires
from partir.cost.target_file import load, save

__all__ = ["Efficiency", "Target", "Wires", "get", "load", "names", "save"]
