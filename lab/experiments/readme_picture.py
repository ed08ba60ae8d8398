"""The README's picture: `python -m lab.experiments.readme_picture [RUN]`, after `make demo`.

It is the first plot of the report: predictions beside measurements of the test part, on white.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

from cdmpp.files.atomic import write_text
from tests.paths import ROOT


def main() -> None:
    """Writes docs/pictures/demo.svg."""
    run = Path(sys.argv[1]) if len(sys.argv) > 1 else ROOT / "runs" / "demo"
    found = re.search(r"<svg.*?</svg>", (run / "report.html").read_text("utf-8"), re.S)
    assert found is not None, f"{run} has a report without a plot"
    start, end, rest = found[0].partition(">")
    white = '<rect width="100%" height="100%" fill="#fff"/>'
    write_text(ROOT / "docs" / "pictures" / "demo.svg", f"{start}{end}{white}{rest}\n")


if __name__ == "__main__":
    main()
