"""Makes several processes run the same strategy: process 0's is sent to all others."""

from __future__ import annotations

import hashlib
import json

import jax
import numpy as np
from jax.experimental import multihost_utils

from partir.errors import StrategyError, error_text
from partir.sharding.strategy import Strategy, from_record


def agree(strategy: Strategy, free: frozenset[int]) -> tuple[Strategy, frozenset[int]]:
    """Process 0's `strategy` and `free` (the numbers of arguments that keep the sharding they come in with), in every process.

    This is a collective: all processes must call it. A single process gets back what it passes. Raises StrategyError, in every
    process, if the text arrived differently in some of them. A process whose program differs raises later, when it replays the
    strategy.
    """
    if jax.process_count() == 1:
        return strategy, free
    text = json.dumps({"strategy": strategy.to_json(), "free": sorted(free)}, sort_keys=True).encode()
    length = int(multihost_utils.broadcast_one_to_all(np.int32(len(text))))
    mine = np.zeros(length, np.uint8)
    if jax.process_index() == 0:
        mine[:] = np.frombuffer(text, np.uint8)
    arrived = np.asarray(multihost_utils.broadcast_one_to_all(mine)).astype(np.uint8).tobytes()
    digest = np.frombuffer(hashlib.sha256(arrived).digest(), np.uint8)
    everyone = np.asarray(multihost_utils.process_allgather(digest))
    if not np.array_equal(everyone, np.broadcast_to(digest, everyone.shape)):
        raise StrategyError(
            error_text(
                "the processes do not agree on a strategy", why="process 0's strategy arrived differently in some of them"
            )
        )
    found = json.loads(arrived)
    return from_record(found["strategy"], "the strategy of process 0"), frozenset(found["free"])
