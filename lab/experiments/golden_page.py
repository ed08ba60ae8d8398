"""Features beside the original toolchain's, record by record: docs/results/golden.*.

`python -m lab.experiments.golden_page` compares the golden files beside this checkout
(`../shared/data/golden`, not part of the repository); `make golden GOLDEN=FILE` any other.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from cdmpp.report.stamp import stamp, write_page
from cdmpp.text import markdown_table
from lab.golden import SHARES, GoldenReport, compare_golden
from tests.paths import ROOT, shared

#: Part of the golden files -> the folder with the tasks of its records.
TASKS = {"llvm": "tenset-cpu", "cuda": "tenset-cuda", "gpu": "ansor-gpu"}
_HEAD = """# Golden comparison

What the replay, the loop tree and the leaf vectors share with what the original TVM 0.8 computed
for the same records: CPU records of Tenset (llvm), random schedules for a T4 (cuda), measured GPU
records (gpu). A cell is one value of a leaf vector; close: to 1e-3."""


def page(reports: dict[str, GoldenReport]) -> str:
    """Returns the counters of every part as Markdown."""
    rows = []
    for name, (alike, of, unit) in SHARES.items():
        counts = [(report.counts[alike], report.counts[of]) for report in reports.values()]
        cells = [f"{part:,} of {whole:,}" if whole else "-" for part, whole in counts]
        rows.append([f"{name}, {unit}", *cells])
    texts = [_HEAD, markdown_table(["", *reports], rows)]
    for name, report in reports.items():
        for what, reasons in (
            ("did not replay", report.failures),
            ("differ in structure", report.differences),
        ):
            texts += [f"- {name}, {count} {what}: {why}" for why, count in reasons.most_common()]
    return "\n\n".join(texts)


def main() -> None:
    """Compares and writes the page."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=ROOT / "docs" / "results")
    args = parser.parse_args()
    reports = {
        name: compare_golden(
            [shared(f"golden/golden_{name}.jsonl.gz")], [shared(f"{folder}/network_info")]
        )
        for name, folder in TASKS.items()
    }
    values = {"parts": {name: report.as_json() for name, report in reports.items()}}
    found = stamp("python -m lab.experiments.golden_page", schemas=["leaf"])
    print(write_page(args.out, "golden", page(reports), values, found))


if __name__ == "__main__":
    main()
