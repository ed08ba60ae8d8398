"""Prints how far the shipped models are from the kernels of a sweep.

Nothing was fitted to the device before.

python -m lab.gpu_session.judge_sweep data/h200/h200.sweep.json [DEVICE]
"""

from __future__ import annotations

import sys
from collections import defaultdict
from pathlib import Path

import numpy as np

from cdmpp.analytic.sweep.run import expected_s
from cdmpp.analytic.sweep.sweep_file import Sweep
from cdmpp.devices.registry import get_device


def main() -> None:
    """Prints a line for each kind of call and type."""
    sweep = Sweep.load(Path(sys.argv[1]))
    device = get_device(sys.argv[2] if len(sys.argv) > 2 else sweep.device)
    said = expected_s([one.call for one in sweep.calls], device)
    ratios: dict[str, list[float]] = defaultdict(list)
    for one, seconds in zip(sweep.calls, said, strict=True):
        form = getattr(one.call, "dtype", None) or getattr(one.call, "kind", "")
        ratios[f"{type(one.call).__name__} {form}"].append(seconds / one.latency_s)
    print("kernels: count, median error, median of predicted over measured")
    for name, own in sorted(ratios.items()):
        error = np.median(np.abs(np.array(own) - 1))
        print(f"{name}: {len(own)}, {100 * error:.1f} %, {np.median(own):.2f}")


if __name__ == "__main__":
    main()
