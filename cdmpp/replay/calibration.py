"""The gap between operators, fitted to one measured network and stored in a file."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

from cdmpp.errors import DataError, UsageError
from cdmpp.files.atomic import write_json
from cdmpp.files.json_text import parse_json
from cdmpp.replay.engine import Replay

FORMAT = "cdmpp-replay-gap"
_MAKE = "create one with: cdmpp replay NETWORK --measure --calibrate-gap FILE"


def fitted_gap_s(run: Replay, measured_s: float) -> float:
    """Returns the pause between operators with which a replay takes the measured time.

    0 if the operators alone already take longer: operators measured alone need not be slower than
    in the network, and a negative pause would not transfer to another network.

    Args:
        run: replay of one queue without gaps.
        measured_s: time of the whole network.
    """
    pauses = len(run.times_s) - 1
    return max(0.0, (measured_s - run.total_s) / pauses) if pauses else 0.0


def write_gap(path: Path, gap_s: float, facts: dict[str, Any]) -> None:
    """Writes a gap and the facts of its measurement.

    Raises:
        DataError: the file cannot be written.
    """
    write_json(path, {"format": FORMAT, "gap_s": gap_s, **facts})


def gap_of(text: str) -> float:
    """Returns the seconds of `--gap`, which is a number of µs or a file.

    Raises:
        UsageError: `text` is neither.
        DataError: the file is invalid.
    """
    try:
        value = float(text)
    except ValueError:
        return _read_gap(Path(text))
    if not 0 <= value < math.inf:
        raise UsageError(f"--gap {text}: expected µs from 0 up, or a file; {_MAKE}")
    return 1e-6 * value


def _read_gap(path: Path) -> float:
    try:
        value = parse_json(path.read_text(encoding="utf-8"))
        if value["format"] != FORMAT or not 0 <= float(value["gap_s"]) < math.inf:
            raise ValueError(f"format {value['format']!r}, gap_s {value['gap_s']!r}")
        return float(value["gap_s"])
    except OSError as error:
        raise UsageError(
            f"--gap {path}: neither a number of µs nor a file ({error.strerror}); {_MAKE}"
        ) from None
    except (ValueError, KeyError, TypeError) as error:
        raise DataError(f"{path}: not a gap of a replay ({error}); {_MAKE}") from None
