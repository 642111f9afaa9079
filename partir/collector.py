"""Pauses Python's cycle collector while a large program is built."""

from __future__ import annotations

import gc
from collections.abc import Generator
from contextlib import contextmanager


@contextmanager
def paused() -> Generator[None]:
    """A context (or decorator) in which no cycles are collected.

    Building IR makes millions of objects that all stay alive. Each full collection would walk all of them and find nothing,
    which made the time to build 100,000 ops grow as the 1.4th power of their number. Reference counting still frees objects.
    """
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()
