"""Paths of the checkout, the results, and the large data beside the checkout."""

from __future__ import annotations

from pathlib import Path

from cdmpp.errors import DataError

ROOT = Path(__file__).resolve().parents[1]
#: Full pages and tables of experiments; git ignores them.
RESULTS = ROOT / "runs" / "results"
#: The committed pages, which quote from the full ones.
PAGES = ROOT / "docs" / "results"
SHARED_DATA = ROOT.parent / "shared" / "data"


def shared(relative: str) -> Path:
    """Returns a path below ../shared/data.

    Raises:
        DataError: it does not exist.
    """
    path = SHARED_DATA / relative
    if not path.exists():
        raise DataError(f"../shared/data/{relative} is missing; this experiment needs it")
    return path
