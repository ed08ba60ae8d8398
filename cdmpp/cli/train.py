"""`cdmpp train`: from measure records to a judged cost model in a run folder."""

from __future__ import annotations

import argparse
import json
import shlex
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cdmpp.cli.shared.options import (
    add_data_options,
    add_output_options,
    add_profile_option,
    add_training_options,
    is_quiet,
)

if TYPE_CHECKING:
    from cdmpp.datasets.samples import Samples
    from cdmpp.nn.options import DeviceType
    from cdmpp.training.options import TrainOptions


def register(subparsers: Any) -> None:
    """Adds the `train` command."""
    parser = subparsers.add_parser(
        "train",
        help="train a cost model and judge it on tasks it has not seen",
        description=(
            "Extracts the measured programs if needed, trains a model with its baselines, "
            "judges them "
            "once on the test part and writes a run folder with report.html. Run the same "
            "command again to "
            "continue a training that was stopped."
        ),
    )
    add_data_options(parser)
    parser.add_argument(
        "--model", metavar="KIND", help="transformer (default), gbdt, roofline or constant"
    )
    parser.add_argument(
        "--split",
        choices=("task", "network", "record"),
        help="what is held out: tasks (default), networks, or single records (leaks)",
    )
    parser.add_argument("--seed", type=int, metavar="N", help="of the split and the training")
    add_training_options(parser)
    parser.add_argument(
        "--device-type",
        choices=("cpu", "cuda"),
        help="what the training of a transformer runs on (default: cpu)",
    )
    parser.add_argument(
        "--out", type=Path, metavar="RUN", help="run folder (default: runs/NAME of the options)"
    )
    add_profile_option(parser)
    add_output_options(parser)
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Runs the command; returns the exit code."""
    options = train_options(args)
    args.dataset = Path(options.dataset) if options.dataset else None
    args.device = list(options.devices) or None

    from cdmpp.cli.dataset.samples import samples_of
    from cdmpp.nn.loop.distributed import first_then_others, is_first, process_group

    with process_group(args.device_type or "cpu"):
        samples = first_then_others(lambda: samples_of(args))
        run_dir = args.out or Path("runs") / run_name(options)
        if is_first():
            return _train(args, options, samples, run_dir)

        from cdmpp.training.run import assist_run

        assist_run(options, samples, run_dir)
        return 0


def _train(args: argparse.Namespace, options: TrainOptions, samples: Samples, run_dir: Path) -> int:
    from cdmpp.cli.shared.progress import training_progress
    from cdmpp.report.run_report import interval_sentence, run_tables, write_run_report
    from cdmpp.training.run import train_run

    with training_progress(is_quiet=is_quiet(args)) as progress:
        result = train_run(options, samples, run_dir, on_progress=progress)
    report = write_run_report(result, command=command_line())
    if args.json:
        values = {"run": str(run_dir), "report": str(report), **result.metrics}
        print(json.dumps(values, allow_nan=False))
        return 0
    from cdmpp.cli.shared.tables import print_metric_tables

    print(f"test part, {result.metrics['split']['description']}\n")
    print_metric_tables(run_tables(result.metrics))
    print(f"intervals: {interval_sentence(result.metrics)}")
    print(f"model   {run_dir}\nreport  {report}")
    return 0


def train_options(args: argparse.Namespace) -> TrainOptions:
    """Returns the options: defaults, then --config, then --set, then the other command line
    options.

    Raises:
        UsageError: an unknown or ill-typed option.
    """
    from dataclasses import replace

    from cdmpp.cli.dataset.command import device_labels
    from cdmpp.config import load_config
    from cdmpp.training.options import TrainOptions

    options = load_config(TrainOptions, args.config, overrides=args.set)
    given: dict[str, Any] = {
        "dataset": str(args.dataset) if args.dataset else None,
        "devices": tuple(sorted(set(device_labels(args.device) or []))) or None,
        **{name: getattr(args, name, None) for name in ("model", "split", "seed")},
    }
    options = replace(
        options, **{name: value for name, value in given.items() if value is not None}
    )
    device_type = getattr(args, "device_type", None)
    return _trained_on(options, device_type) if device_type else options


def _trained_on(options: TrainOptions, device_type: DeviceType) -> TrainOptions:
    """Returns the options with the transformer, alone or in the ensemble, trained there."""
    from dataclasses import replace

    def moved(part: Any) -> Any:
        return replace(part, loop=replace(part.loop, device_type=device_type))

    ensemble = replace(
        options.ensemble,
        transformer=moved(options.ensemble.transformer),
        perceptron=moved(options.ensemble.perceptron),
    )
    return replace(options, transformer=moved(options.transformer), ensemble=ensemble)


def run_name(options: TrainOptions) -> str:
    """Returns a folder name that is equal for equal options, so that a stopped run is found
    again.
    """
    import hashlib

    from cdmpp.config import dump_text

    dataset = Path(options.dataset).name if options.dataset else "tenset-cpu"
    devices = "+".join(options.devices) if 0 < len(options.devices) <= 2 else ""
    words = [dataset, devices, options.model, f"by-{options.split}", f"seed{options.seed}"]
    digest = hashlib.sha256(dump_text(options).encode()).hexdigest()[:6]
    return "-".join([*(word for word in words if word), digest])


def command_line() -> str:
    """Returns the command of this process for people to repeat."""
    program = Path(sys.argv[0])
    is_script = program.suffix == ".py" and program.parent.name == "scripts"
    words = [f"python scripts/{program.name}" if is_script else "cdmpp"]
    return " ".join([*words, *(shlex.quote(word) for word in sys.argv[1:])])
