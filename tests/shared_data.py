"""Where tests find the large real data: beside the checkout, or nowhere (then they skip with a
reason).
"""

from __future__ import annotations

from pathlib import Path

import pytest

SHARED_DATA = Path(__file__).resolve().parents[2] / "shared" / "data"


def shared(relative: str) -> Path:
    """Returns a path below ../shared/data; skips the test when it is not there."""
    path = SHARED_DATA / relative
    if not path.exists():
        pytest.skip(f"../shared/data/{relative} is absent")
    return path
