"""Fixtures of the command line's tests, for the laboratory's commands."""

from __future__ import annotations

from tests.cli.conftest import cache, dataset

__all__ = ["cache", "dataset"]
