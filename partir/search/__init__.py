"""Search for strategies: one environment, several searchers."""

from partir.search.beam import Beam
from partir.search.environment import Decision, Environment, Price, State
from partir.search.exhaustive import Exhaustive
from partir.search.mcts import MCTS
from partir.search.random import Random
from partir.search.searcher import Progress, Result, Run, Searcher

__all__ = [
    "MCTS",
    "Beam",
    "Decision",
    "Environment",
    "Exhaustive",
    "Price",
    "Progress",
    "Random",
    "Result",
    "Run",
    "Searcher",
    "State",
]
