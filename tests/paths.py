"""Where tests find the checkout, and the large real data beside it (where absent, they skip)."""

from __future__ import annotations

from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
SHARED_DATA = ROOT.parent / "shared" / "data"


def shared(relative: str) -> Path:
    """Returns a path below ../shared/data; skips the test when it is not there."""
    path = SHARED_DATA / relative
    if not path.exists():
        pytest.skip(f"../shared/data/{relative} is absent")
    return path
