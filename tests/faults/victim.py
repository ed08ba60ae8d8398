"""A command that survives faults or does not: `python -m tests.faults.victim OUT DEED`."""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path


def main(out: Path, deed: str) -> None:
    """Writes a line a tenth of a second into a journal until it has three, and then a result."""
    journal = out / "journal"
    lines = journal.read_text().splitlines(keepends=True) if journal.exists() else []
    if lines and deed == "loses":
        lines = []
        journal.unlink()
    for number in range(len(lines), 3):
        if deed == "leaves" and os.fork() == 0:
            os.setsid()
            time.sleep(60)
            os._exit(0)
        with journal.open("a") as stream:
            stream.write(f"{number} {os.getpid()}\n")
        time.sleep(0.1)
    if deed == "litters":
        (out / "part.1.tmp").touch()
    (out / "result").write_text(f"{os.getpid()}" if deed == "differs" else "3")


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2])
