"""`cdmpp distil`: distils a trained model into a small network for searches."""

from __future__ import annotations

import argparse
import json
from dataclasses import asdict
from typing import Any

from cdmpp.cli.shared.option_table import add_table
from cdmpp.cli.shared.options import add_output_options
from cdmpp.cli.shared.samples import dataset_of
from cdmpp.predict.distilled import RankErrors
from cdmpp.pretrained import own_model_folder
from cdmpp.text import percent_text
from cdmpp.training.distil import distil


def add_options(parser: argparse.ArgumentParser) -> None:
    """Adds the options of `cdmpp distil`."""
    parser.description = (
        "Trains a perceptron on the predictions of a trained model (with machine code, if the "
        "programs have it and the model reads it) and on the measurements, and saves it with "
        "the model. It scores the candidates of searches; predictions still come from the model."
    )
    add_table(parser, """
        --model RUN: Path required    run folder of a model trained on at least these datasets;
            `pretrained` with --package
        --package                     allow changes to the model of the installed package
        --data DIR...: Path required  dataset of measured programs; may be repeated
        --cache DIR: Path = cache     where extracted data are kept (default: ./cache)
    """)  # fmt: skip
    add_output_options(parser)


def run(args: argparse.Namespace) -> int:
    """Runs the command; returns the exit code."""
    folder = own_model_folder(args.model, is_package=args.package)
    is_quiet = args.json or args.quiet
    folders = [
        dataset_of(place, cache_dir=args.cache, is_quiet=is_quiet).folder for place in args.data
    ]
    found = distil(folder, folders, cache_dir=args.cache)
    lines = {"network": found.errors, "teacher": found.teacher_errors}
    if args.json:
        values: dict[str, Any] = {
            name: None if one is None else asdict(one) for name, one in lines.items()
        }
        values |= {"kinds": list(found.kinds), "teacher_share": found.teacher_share}
        print(json.dumps(values, allow_nan=False))
        return 0
    share = percent_text(found.teacher_share, 0)
    print(
        f"{folder}: scores searches on devices of kind {' and '.join(found.kinds)}, {share} teacher"
    )
    for name, errors in lines.items():
        if errors is not None:
            print(f"{name}, held-out tasks: {_text(errors)}")
    return 0


def _text(errors: RankErrors) -> str:
    values = {
        "log error": errors.log_error, "rank correlation within tasks": errors.spearman,
        "top-1 score": errors.top_1, "top-5 score": errors.top_5,
    }  # fmt: skip
    known = [f"{name} {value:.3f}" for name, value in values.items() if value is not None]
    return ", ".join(known)
