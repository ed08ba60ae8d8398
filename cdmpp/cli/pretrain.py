"""`cdmpp pretrain`: trains the model that comes with the package and packages it."""

from __future__ import annotations

import argparse
import json
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cdmpp.cli.shared.options import add_output_options, add_training_options, is_quiet

if TYPE_CHECKING:
    from cdmpp.datasets.samples import Samples


def register(subparsers: Any) -> None:
    """Adds the `pretrain` command."""
    parser = subparsers.add_parser(
        "pretrain",
        help="train and package the model behind `--model pretrained`",
        description=(
            "Trains on the shipped dataset and on extracted datasets that are named, as far as "
            "their licence lets weights be shipped, judges the model on tasks that it has not "
            "seen, and packages it with its card."
        ),
    )
    parser.add_argument(
        "--data",
        type=Path,
        action="append",
        default=[],
        metavar="DIR",
        help="another extracted dataset; may be repeated",
    )
    parser.add_argument("--name", default="default", help="name of the model (default: default)")
    parser.add_argument(
        "--programs-per-device",
        type=int,
        default=20_000,
        metavar="N",
        help="at most so many of every device; 0 = all (default: 20000)",
    )
    parser.add_argument("--seed", type=int, metavar="N", help="of the split and the training")
    add_training_options(parser)
    parser.add_argument(
        "--run", type=Path, metavar="RUN", dest="run_dir", help="run folder (default: runs/NAME)"
    )
    parser.add_argument(
        "--out", type=Path, metavar="DIR", help="folder of packaged models (default: the package's)"
    )
    parser.add_argument("--cache", type=Path, metavar="DIR", default=Path("cache"),
                        help="where extracted data are kept (default: ./cache)")  # fmt: skip
    parser.add_argument("--jobs", type=int, metavar="N", help="processes that extract")
    add_output_options(parser)
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Runs the command; returns the exit code."""
    from cdmpp.cli.train import command_line, train_options
    from cdmpp.files.places import package_folder

    # What the options say of data is decided here.
    args.dataset, args.device, args.network_info = None, None, None
    options = train_options(args)
    samples = _samples(args, options.seed)
    labels = tuple(spec.name for spec in samples.devices)
    options = replace(options, dataset="", devices=labels, baselines=())

    from cdmpp.cli.shared.progress import training_progress
    from cdmpp.report.run_report import write_run_report
    from cdmpp.training.package import bytes_of, package_run, read_card
    from cdmpp.training.run import train_run

    run_dir = args.run_dir or Path("runs") / f"pretrained-{args.name}"
    with training_progress(is_quiet=is_quiet(args)) as progress:
        result = train_run(options, samples, run_dir, on_progress=progress)
    write_run_report(result, command=command_line())
    out = args.out or package_folder("cdmpp.pretrained")
    folder = package_run(run_dir, out, samples, name=args.name, command=command_line())
    if args.json:
        print(json.dumps({"folder": str(folder), **read_card(folder)}, allow_nan=False))
        return 0
    size = bytes_of(folder)
    print(f"packaged {folder} ({size / 1e6:.2f} MB), trained on {', '.join(labels)}")
    return 0


def _samples(args: argparse.Namespace, seed: int) -> Samples:
    """Returns what may train a shipped model, of the shipped dataset and the named ones."""
    import sys

    import numpy as np

    from cdmpp.cli.dataset.samples import extracted_folder
    from cdmpp.datasets.cache import load_samples
    from cdmpp.datasets.selection import cap_programs
    from cdmpp.training.package import shippable

    own = [argparse.Namespace(**{**vars(args), "dataset": path}) for path in (None, *args.data)]
    folders = [extracted_folder(one) for one in own]
    folder = folders[0] if len(folders) == 1 else _merged(folders, args.cache)
    samples = load_samples(folder)
    present = [samples.devices[index].name for index in np.unique(samples.device)]
    allowed, others = shippable(present)
    if others and not is_quiet(args):
        text = ", ".join(others)
        print(f"cdmpp: left out, no licence to ship weights: {text}", file=sys.stderr)
    chosen = load_samples(folder, allowed)
    return cap_programs(chosen, args.programs_per_device, seed=seed)


def _merged(folders: list[Path], cache: Path) -> Path:
    """Returns the folder with all of the datasets, merged when that has not been done."""
    import hashlib

    from cdmpp.datasets.extraction.extracted import is_extracted_dir, read_manifest
    from cdmpp.datasets.extraction.merge import merge

    hashes = " ".join(str(read_manifest(folder)["data_hash"]) for folder in folders)
    merged = cache / f"pretrain-{hashlib.sha256(hashes.encode()).hexdigest()[:12]}"
    if not is_extracted_dir(merged):
        merge(folders, merged)
    return merged
