"""The README's picture, after `make demo`: the first plot of the report, predictions beside
measurements of the test part, on white.
"""

from __future__ import annotations

import re
from pathlib import Path

from cdmpp.files.atomic import write_text
from lab.paths import ROOT


def experiment(run: Path = ROOT / "runs" / "demo") -> None:
    """Writes docs/pictures/demo.svg."""
    found = re.search(r"<svg.*?</svg>", (run / "report.html").read_text("utf-8"), re.S)
    assert found is not None, f"{run} has a report without a plot"
    start, end, rest = found[0].partition(">")
    white = '<rect width="100%" height="100%" fill="#fff"/>'
    write_text(ROOT / "docs" / "pictures" / "demo.svg", f"{start}{end}{white}{rest}\n")
