"""Predictions by a server: the results of a local model, without loading the model or TVM."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from cdmpp.api.predictions import Predictions
from cdmpp.datasets.read_report import ReadReport
from cdmpp.errors import DataError
from cdmpp.files.open_text import read_text
from cdmpp.predict.prediction import Prediction, check_predicted
from cdmpp.predict.records import RecordPredictions
from cdmpp.serve.client import Client

#: Default limit of a server: programs x devices per request.
_PROGRAMS = 4096


def served_programs(
    client: Client, path: Path, devices: Sequence[str], *, model: str | None = None
) -> Predictions:
    """Returns the predictions of a file's programs, each on all devices.

    Args:
        path: TVMScript only; the server does not run Python.
        devices: labels; empty = the model's only device.
        model: name of one of the server's models; None = its first.

    Raises:
        DataError: the file cannot be read, or none of its programs can be predicted.
        CdmppError: an error of the server.
    """
    entries = [{"tvmscript": read_text(path, expected="TVMScript")}]
    rows = client.predict(entries, devices=devices, model=model)["predictions"]
    found = [Prediction.from_json({**row, "name": row["name"] or path.name}) for row in rows]
    check_predicted(found, path)
    return Predictions(found)


def served_records(
    client: Client, path: Path, devices: Sequence[str], *, model: str | None = None
) -> Predictions:
    """Returns the predictions of a record file's programs; their tasks must be shipped.

    Args:
        devices: labels; empty = the model's only device.
        model: name of one of the server's models; None = its first.

    Raises:
        DataError: the file cannot be read, or none of its programs can be predicted.
        CdmppError: an error of the server.
    """
    text = read_text(path, expected="measure records")
    lines = [line for line in text.splitlines() if line.strip()]
    if not lines:
        raise DataError(f"{path} has no records; expected one JSON object per line")
    step = _PROGRAMS // max(1, len(devices))
    programs: list[Prediction] = []
    failures: Counter[str] = Counter()
    for start in range(0, len(lines), step):
        entries = [{"records": lines[start : start + step]}]
        for row in client.predict(entries, devices=devices, model=model)["predictions"]:
            if row["reason"] is None:
                programs.append(Prediction.from_json(row, is_record=True))
            else:
                failures[row["reason"]] += 1
    programs.sort(key=lambda one: one.latency_s or 0.0)
    answers = RecordPredictions(tuple(programs), ReadReport(), failures)
    answers.check(path)
    return Predictions(programs, notes=answers.notes())
