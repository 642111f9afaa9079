"""Python's cycle collector, kept from walking a large program over and over while it is being built."""

from __future__ import annotations

import gc
from collections.abc import Generator
from contextlib import contextmanager


@contextmanager
def paused() -> Generator[None]:
    """No collection of cycles within, also as a decorator.

    Building IR makes millions of objects that all stay: each full collection walks every one of them and finds nothing,
    which made the time to build 100,000 ops grow as the 1.4th power of their number. Objects without cycles are freed as ever.
    """
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()
