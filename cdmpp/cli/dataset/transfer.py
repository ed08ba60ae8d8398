"""`cdmpp dataset transfer`: predicts times on a device from measurements on another."""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

import numpy as np

from cdmpp.cli.shared.option_table import add_table
from cdmpp.cli.shared.options import add_data_options, add_model_option, add_output_options
from cdmpp.cli.shared.samples import asked_labels, dataset_of
from cdmpp.errors import UsageError
from cdmpp.predict.estimates import load_trained
from cdmpp.predict.requested_device import asked_device
from cdmpp.pretrained import model_folder
from cdmpp.renames import with_old_keys
from cdmpp.text import aligned, counted, percent_text
from cdmpp.training.transferred import transfer_dataset

_LINES = {
    "transferred": "measured on {source}, corrected by the model",
    "model": "only the model",
    "one_factor": "measured on {source}, times the best factor",
}


def add_options(parser: argparse.ArgumentParser) -> None:
    """Adds the options of `cdmpp dataset transfer`."""
    parser.description = (
        "Predicts how long programs measured on device A take on device B, and writes a table "
        "with the time and interval of each. The model's errors on A correct its predictions "
        "for B."
    )
    add_data_options(parser, has_device=False)
    add_table(parser, """
        --from A required as source  label of the measured device
        --to B required as target    label of the requested device
    """)  # fmt: skip
    add_model_option(parser)
    add_table(parser, """
        --evaluate        print the errors, if the dataset has measurements of B too
        --out FILE: Path  the table, Parquet (default: A-to-B.parquet)
    """)  # fmt: skip
    add_output_options(parser)


def run(args: argparse.Namespace) -> int:
    """Runs the command; returns the exit code."""
    labels = asked_labels(args.dataset, [args.source, args.target])
    if len(labels) != 2:
        raise UsageError(f"--from {args.source} --to {args.target}: expected two devices")
    out = args.out or Path(f"{labels[0]}-to-{labels[1]}.parquet")
    if out.exists():
        raise UsageError(f"{out} exists already; give a new file with --out FILE, or remove it")
    trained = load_trained(model_folder(args.model))
    source, target = (asked_device(label, trained.card) for label in labels)
    samples = dataset_of(
        args.dataset, labels if args.evaluate else labels[:1], cache_dir=args.cache,
        network_info=args.network_info, jobs=args.jobs, may_install=not args.no_install,
        is_quiet=args.json or args.quiet,
    ).samples  # fmt: skip
    found = transfer_dataset(trained, samples, source, target)
    judged = found.judged(trained) if args.evaluate else None
    found.save(out)
    values: dict[str, Any] = {
        "programs": len(found.samples), "tasks": len(np.unique(found.samples.task_id)),
        "table": str(out), "evaluated": judged,
    }  # fmt: skip
    if args.json:
        print(json.dumps(with_old_keys(values), allow_nan=False))
        return 0
    print(
        f"{counted(values['programs'], 'program')} of {counted(values['tasks'], 'task')}, "
        f"measured on {labels[0]}, on {labels[1]}: {out}"
    )
    if judged is not None:
        print(_judged_text(judged, labels[0]))
    return 0


def _judged_text(values: dict[str, Any], source: str) -> str:
    rows = [["", "MAPE", "median APE"]]
    for name, words in _LINES.items():
        line = values[name]
        errors = [percent_text(line["mape"]), percent_text(line["median_ape"])]
        rows.append([words.format(source=source), *errors])
    held = percent_text(values["transferred"]["interval_coverage"])
    return (
        f"\n{values['n']:,} of these programs were measured there too "
        f"({counted(values['tasks'], 'task')},\n"
        f"{values['in_training']} of them in the model's training data):\n{aligned(rows)}\n"
        f"{held} of a task's programs are in their 90 % interval"
    )
