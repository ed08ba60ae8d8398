"""Keeps the fastest algorithm of each layer of a file of `cdmpp analytic conv collect`.

python -m lab.gpu_session.fastest ALL.csv > FASTEST.csv
"""

from __future__ import annotations

import csv
import sys
from pathlib import Path


def main() -> None:
    """Prints the rows that stay, in the order of the file."""
    with Path(sys.argv[1]).open(newline="") as file:
        rows = list(csv.DictReader(file))
    best: dict[tuple[str, ...], dict[str, str]] = {}
    for row in rows:
        layer = tuple(v for k, v in row.items() if k not in ("algorithm", "time_ms", "reason"))
        if layer not in best or float(row["time_ms"]) < float(best[layer]["time_ms"]):
            best[layer] = row
    writer = csv.DictWriter(sys.stdout, rows[0])
    writer.writeheader()
    writer.writerows(best.values())


if __name__ == "__main__":
    main()
