"""Tactics: named ways to partition, each yielding actions; a schedule is a list of them."""

from partir.tactics.data_parallel import DataParallel
from partir.tactics.edges import EdgeParallel
from partir.tactics.embedding import EmbeddingParallel
from partir.tactics.expert import ExpertParallel
from partir.tactics.manual import FIRST_DIVISIBLE_DIM, Manual
from partir.tactics.megatron import Megatron
from partir.tactics.multi_query import MultiQuery
from partir.tactics.replay import Decisions, Replay
from partir.tactics.search import Search
from partir.tactics.sequence import SequenceParallel
from partir.tactics.tactic import AppliedTactic, Tactic, run
from partir.tactics.zero import ZeRO

__all__ = [
    "FIRST_DIVISIBLE_DIM",
    "AppliedTactic",
    "DataParallel",
    "Decisions",
    "EdgeParallel",
    "EmbeddingParallel",
    "ExpertParallel",
    "Manual",
    "Megatron",
    "MultiQuery",
    "Replay",
    "Search",
    "SequenceParallel",
    "Tactic",
    "ZeRO",
    "run",
]
