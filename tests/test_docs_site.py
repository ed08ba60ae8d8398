"""The documentation site, where its packages are installed: built, nothing from elsewhere."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.paths import ROOT

pytest.importorskip("mkdocs", reason="mkdocs is not installed: pip install 'cdmpp[docs]'")
pytest.importorskip("mkdocstrings", reason="mkdocstrings is not installed")


@pytest.mark.slow
def test_the_site_is_built_strictly_and_asks_nobody_else(tmp_path: Path) -> None:
    subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--quiet", "-d", str(tmp_path)],
        cwd=ROOT, check=True, capture_output=True,
    )  # fmt: skip
    pages = {path.relative_to(tmp_path).as_posix(): path for path in tmp_path.rglob("index.html")}
    assert {"index.html", "faq/index.html", "start/index.html", "changelog/index.html"} <= set(
        pages
    )
    assert "cdmpp search --task" in pages["commands/search/index.html"].read_text("utf-8")
    assert "CostModel" in pages["python/cdmpp-models/index.html"].read_text("utf-8")
    assert (tmp_path / "search" / "search_index.json").is_file()
    for path in pages.values():
        loaded = re.findall(
            r'<(?:script|link|img)[^>]+(?:src|href)="(https?:[^"]+)', path.read_text("utf-8")
        )
        assert loaded == []
