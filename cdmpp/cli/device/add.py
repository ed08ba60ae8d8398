"""`cdmpp device add` and `cdmpp device curve`: a model for this machine, and its error curve."""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path

from cdmpp.cli.device.sweep import run_sweep_command
from cdmpp.cli.shared.option_table import add_table
from cdmpp.cli.shared.options import (
    add_force_option,
    add_output_options,
    check_goes_with,
    command_line,
)
from cdmpp.cli.shared.progress import progress
from cdmpp.cli.shared.samples import dataset_of
from cdmpp.devices.of_run import run_spec
from cdmpp.devices.tables import device_text
from cdmpp.files.atomic import check_replaceable, write_text
from cdmpp.report.device_curve import curve_page, curve_svg, curve_text
from cdmpp.report.page import page_markdown
from cdmpp.report.run_report import write_run_report
from tvm_helper.device_add.options import DeviceAddOptions, run_folder

_MINUTES = 10.0
_CACHE = Path("cache")


def add_options(parser: argparse.ArgumentParser) -> None:
    """Adds the options of `device add`."""
    parser.description = (
        "Describes this machine (system information and two micro-benchmarks), measures "
        "programs of all kinds of kernels within the time limit, fine-tunes the pre-trained "
        "model on them, and prints the error on other kernels by number of measured tasks. The "
        "output is a run folder for predict and evaluate. Rerun the same command to continue "
        "after an interruption."
    )
    parser.add_argument("name", metavar="NAME", help="new label, e.g. my-laptop")
    add_table(parser, """
        --minutes M: float         time limit for everything (default: 10; 5 with --sweep)
        --out RUN: Path            run folder (default: runs/device-NAME)
        --threads N: int           threads of the label on a CPU (default: cores)
        --target TEXT              TVM target, JSON or tag (default: from the probe)
        --spec                     NAME is a known label: use its description, do not probe
        --sweep                    GPUs: only measure a fixed list of kernels with torch, which
            correct the predictions of GPU kernels
        --device-spec YAML: Path   with --sweep: numbers of the GPU's data sheet, as in
            cdmpp/devices
    """)  # fmt: skip
    add_force_option(parser)
    add_table(parser, f"""
        --from RUN as from_run = pretrained  model to start from (default: pretrained)
        --dataset DIR: Path                 folder in Tenset's layout, such as data/tenset-cpu:
            programs of its tasks, chosen by clustering, are measured instead
        --per-task N: int = 12              maximum number of programs per task (default: 12)
        --seed N: int = 0                   seed of task selection and training
        --cache DIR: Path = {_CACHE}           cache folder of extracted data (default: ./cache)
    """)  # fmt: skip
    add_output_options(parser)


def add_curve_options(parser: argparse.ArgumentParser) -> None:
    """Adds the options of `device curve`."""
    parser.add_argument("run_folder", type=Path, metavar="RUN", help="folder of `device add`")
    form = parser.add_mutually_exclusive_group()
    add_table(form, """
        --markdown  print Markdown
        --json      print one JSON object
    """)  # fmt: skip
    add_table(parser, """
        --plot FILE.svg: Path  write the plot to this file; the Markdown shows it
    """)  # fmt: skip


def run(args: argparse.Namespace) -> int:
    """Runs `cdmpp device add`; returns the exit code."""
    began = time.monotonic()
    check_goes_with("--sweep", args.sweep, device_spec=args.device_spec)
    options = DeviceAddOptions(
        name=args.name, minutes=_MINUTES if args.minutes is None else args.minutes,
        threads=args.threads, target=args.target,
        dataset=str(args.dataset) if args.dataset else "", from_run=args.from_run,
        use_known=args.spec, force=args.force, per_task=args.per_task, seed=args.seed,
    )  # fmt: skip
    options.check()
    folder = args.out or run_folder(options)
    if args.sweep:
        usual = DeviceAddOptions(args.name)
        check_goes_with(
            "programs of TVM", False, "--sweep", target=args.target, dataset=args.dataset,
            threads=args.threads, per_task=options.per_task != usual.per_task,
            seed=options.seed != usual.seed, cache=args.cache != _CACHE,
            **{"from": options.from_run != usual.from_run},
        )  # fmt: skip
        return run_sweep_command(args, folder)
    from tvm_helper.device_add.run import add_device  # TVM takes a second

    is_quiet = args.json or args.quiet
    with progress(is_quiet=is_quiet) as show:
        result, curve = add_device(
            options,
            lambda: dataset_of(args.dataset, cache_dir=args.cache, is_quiet=is_quiet).samples,
            folder, began=began, on_progress=lambda what, detail: show(what, 0, None, detail),
        )  # fmt: skip
    if result is not None:
        write_run_report(result, command=command_line())
        write_text(folder / "curve.svg", curve_svg(curve))
    if args.json:
        print(json.dumps({"run": str(folder), **curve}, allow_nan=False))
        return 0
    print(f"{device_text(run_spec(folder, options.name), only_known=True)}\n")
    print(curve_text(curve))
    print(
        f"\nmodel   {folder}\nreport  {folder / 'report.html'}\nplot    {folder / 'curve.svg'}\n"
        f"next    cdmpp predict --model {folder} --device {options.name} --program FILE.py\n"
        f"        cdmpp predict --model {folder} --device {options.name} --network FILE.onnx\n"
        f"        cdmpp evaluate --model {folder} --dataset {folder / 'measurements'}\n"
        f"        cdmpp doctor {folder / 'measurements'}"
    )
    return 0


def run_curve(args: argparse.Namespace) -> int:
    """Runs `cdmpp device curve`; returns the exit code."""
    from tvm_helper.device_add.run import read_curve

    check_replaceable(args.plot, "<svg", what="an SVG plot", option="--plot")
    curve = read_curve(args.run_folder)
    if args.plot is not None:
        write_text(args.plot, curve_svg(curve))
    if args.json:
        print(json.dumps(curve, allow_nan=False, indent=1))
    elif args.markdown:
        command = f"cdmpp device curve {args.run_folder} --markdown"
        plot = None
        if args.plot is not None:
            command, plot = f"{command} --plot {args.plot}", args.plot.name
        print(page_markdown(curve_page(curve, command=command, plot=plot)), end="")
    else:
        print(curve_text(curve))
    return 0
