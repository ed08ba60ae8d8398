"""The documentation site, where its packages are installed: built, nothing from elsewhere."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from tests.paths import ROOT

pytest.importorskip("mkdocs", reason="mkdocs is not installed: pip install 'cdmpp[docs]'")
pytest.importorskip("mkdocstrings", reason="mkdocstrings is not installed")

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("site")
    subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--quiet", "-d", str(folder)],
        cwd=ROOT, check=True, capture_output=True,
    )  # fmt: skip
    return folder


def test_the_site_is_built_strictly_and_asks_nobody_else(site: Path) -> None:
    pages = {path.relative_to(site).as_posix(): path for path in site.rglob("index.html")}
    names = ("", "start/", "changelog/", "how-to/faq/", "tutorials/first-prediction/")
    assert {f"{name}index.html" for name in names} <= set(pages)
    assert "cdmpp search --task" in pages["commands/search/index.html"].read_text("utf-8")
    assert "CostModel" in pages["python/cdmpp-models/index.html"].read_text("utf-8")
    for path in pages.values():
        loaded = re.findall(
            r'<(?:script|link|img)[^>]+(?:src|href)="(https?:[^"]+)', path.read_text("utf-8")
        )
        assert loaded == []


def test_the_search_leads_newcomers_to_the_right_page(site: Path) -> None:
    if shutil.which("node") is None:
        pytest.skip("node is not installed")
    questions = yaml.safe_load((ROOT / "docs" / "site" / "search.yaml").read_text())["questions"]
    done = subprocess.run(
        ["node", str(ROOT / "tests" / "site_search.js"), str(site)],
        input=json.dumps(list(questions)), check=True, capture_output=True, text=True,
    )  # fmt: skip
    first = [found[0].split("#")[0] for found in json.loads(done.stdout)]
    assert first == [
        page.removesuffix("README.md").replace(".md", "/") for page in questions.values()
    ]
    searched = (site / "search" / "search_index.json").read_text()
    assert '"location":"results/' not in searched
    assert '"location":"lab/' not in searched
