"""Python's garbage collector, kept from running in the middle of something."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def without_collector() -> Iterator[None]:
    """Stops the search for cycles: it disturbs timings, and looks at every new object of a list of
    millions again and again.
    """
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()
