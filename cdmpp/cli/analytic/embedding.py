"""`cdmpp analytic embedding`: embedding lookups on GPUs and CPUs."""

from __future__ import annotations

import argparse
import json
import math
import sys
from collections.abc import Mapping
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from cdmpp.analytic.embedding.campaign import (
    ROWS_FILE,
    CampaignRow,
    campaign_points,
    measure_campaign,
    read_folder,
)
from cdmpp.analytic.embedding.cpu import CpuConstants, CpuPoint, cpu_parts_s
from cdmpp.analytic.embedding.devices import kernel_device
from cdmpp.analytic.embedding.errors import (
    HISTOGRAM_EDGES,
    KernelErrors,
    error_histogram,
    histogram_labels,
    kernel_errors,
)
from cdmpp.analytic.embedding.evaluate import fit_campaign, judge_campaign, predict_table
from cdmpp.analytic.embedding.gpu import VERSIONS, KernelOptions
from cdmpp.analytic.embedding.gpu_fit import estimate_point
from cdmpp.analytic.embedding.intervals import cpu_evidence, gpu_evidence
from cdmpp.analytic.embedding.kernel_table import read_kernel_table
from cdmpp.analytic.embedding.shapes import (
    PASSES,
    EmbeddingShape,
    default_rows_per_block,
    load_preset,
)
from cdmpp.analytic.intervals import Evidence, LogErrors, ends_of
from cdmpp.arrays import FloatArray
from cdmpp.cli.shared.lab import run_experiment
from cdmpp.cli.shared.option_table import add_table
from cdmpp.cli.shared.options import add_output_options
from cdmpp.errors import UsageError
from cdmpp.files.atomic import check_replaceable_json, make_folder, write_text
from cdmpp.report.plots import (
    COLOURS,
    check_plot_files,
    legend,
    new_figure,
    predicted_against_measured,
    svg_text,
)
from cdmpp.text import counted, interval_text, seconds_text

_time = partial(seconds_text, digits=5)
_PLOTS = ("predicted.svg", "histogram.svg")
_SIZES = ("batch", "rows", "tables", "lookups", "width", "rows_per_block")


def add_predict_options(parser: argparse.ArgumentParser) -> None:
    """Adds the options of `analytic embedding predict`."""
    _add_shape(parser)
    _add_kernel(parser)
    add_table(parser, """
        --constants JSON: Path  constants of a CPU, written by `fit`
        --measured CSV: Path    profiler table of such kernels (same pass and access), from which
            the interval is computed
        --measured-on NAME      GPU of that table (default: the one of --device)
    """)  # fmt: skip
    add_output_options(parser)


def add_measure_options(parser: argparse.ArgumentParser) -> None:
    """Adds the options of `analytic embedding measure`."""
    add_table(parser, """
        --out DIR: Path required        campaign folder
        --grid smoke|quick|full = full  number of shapes
        --rounds N: int = 3             number of visits to each shape
        --threads N: int = 1            threads of torch
        --budget S: float = 0.3         seconds of timed calls per shape
    """)  # fmt: skip
    add_output_options(parser)


def add_fit_options(parser: argparse.ArgumentParser) -> None:
    """Adds the options of `analytic embedding fit`."""
    _add_campaign(parser)
    add_table(parser, """
        --out JSON: Path required  output file
    """)  # fmt: skip
    add_output_options(parser)


def add_evaluate_options(parser: argparse.ArgumentParser) -> None:
    """Adds the options of `analytic embedding evaluate`."""
    _add_campaign(parser)
    _add_kernel(parser)
    parser.add_argument("--split", choices=("shape", "table", "rows"), default="shape")
    add_table(parser, """
        --seed N: int = 0                   of the split
        --kernels embedding|none = embedding  GPU: rows to keep
        --least-batch N: int = 1            GPU: smallest batch to keep (the published notebook: 2)
        --least-rows N: int = 1             GPU: smallest table to keep (its "big sizes": 100000)
        --hit-floor F: float = 0.0004       added to each error in the geometric mean (0 = none)
        --plots DIR: Path                   write SVG plots there
    """)  # fmt: skip
    add_output_options(parser)


def add_report_options(parser: argparse.ArgumentParser) -> None:
    """Adds the options of `analytic embedding report`."""
    _add_campaign(parser)
    add_table(parser, """
        --out DIR: Path required  output folder
        --seeds N,N = '0,1,2'     of the splits
    """)  # fmt: skip
    add_output_options(parser)


def run_predict(args: argparse.Namespace) -> int:
    """Runs `cdmpp analytic embedding predict`; returns the exit code."""
    shape = _shape(args.preset, {name: getattr(args, name) for name in _SIZES})
    point = CpuPoint(args.which, shape, args.zipf)
    if args.constants is not None:
        constants = CpuConstants.load(args.constants)
        parts = cpu_parts_s(point, constants)
        latency_s = float(constants.latency_s([point])[0])
        errors, evidence = cpu_evidence(constants, args.which)
        if args.json:
            value = {"pass": args.which, **_interval_row(latency_s, errors, evidence)}
            print(json.dumps({**value, "parts_s": parts, **asdict(shape), "zipf": args.zipf}))
            return 0
        machine = constants.origin.get("machine", "a CPU")
        print(f"{_interval(latency_s, errors)}  {args.which} on {machine}\n{evidence.sentence}")
        for name, part in sorted(parts.items(), key=lambda item: -item[1]):
            print(f"  {100 * part / latency_s:5.1f} %  {name.replace('_', ' ')}")
        return 0
    if args.zipf and args.version != "lru":
        raise UsageError(f"--zipf {args.zipf}: version {args.version} supports uniform access only")
    device = kernel_device(args.device)
    options = KernelOptions(
        version=args.version, is_fbgemm=args.fbgemm,
        uses_shared_memory=not args.no_shared_memory,
    )  # fmt: skip
    found = estimate_point(point, device, options)
    measured = None if args.measured is None else read_kernel_table(args.measured)
    measured_on = kernel_device(args.measured_on or args.device)
    errors, evidence = gpu_evidence(measured, args.measured, measured_on, device, point, options)
    if args.json:
        about = {"device": device.name, "source": device.source, "pass": args.which}
        value = {**about, "version": args.version, **asdict(shape), **asdict(found)}
        print(json.dumps({**value, **_interval_row(found.latency_s, errors, evidence)}))
        return 0
    print(
        f"{_interval(found.latency_s, errors)}  {args.which} on {device.name} ({args.version}), "
        f"limited by {found.limit}\n{evidence.sentence}\n"
        f"  DRAM traffic {found.dram_bytes / 1e6:.3f} MB, "
        f"L2 traffic {found.l2_bytes / 1e6:.3f} MB\n"
        f"  hit rate {100 * found.hit_rate:.2f} %, {found.cached_rows} rows of a table fit into "
        f"its part of the L2\n  rates: {device.source}; the launch of the kernel is not counted"
    )
    return 0


def _interval(latency_s: float, errors: LogErrors | None) -> str:
    return interval_text(latency_s, *ends_of(errors, latency_s), digits=5)


def _interval_row(latency_s: float, errors: LogErrors | None, evidence: Evidence) -> dict[str, Any]:
    low_s, high_s = ends_of(errors, latency_s)
    ends = {"low_s": low_s, "high_s": high_s}
    return {"latency_s": latency_s, **ends, "interval_source": evidence.source}


def run_measure(args: argparse.Namespace) -> int:
    """Runs `cdmpp analytic embedding measure`; returns the exit code."""
    if args.rounds < 1 or args.threads < 1:
        raise UsageError("measure: --rounds and --threads must be at least 1")
    rows = measure_campaign(
        args.out, args.grid, rounds=args.rounds, threads=args.threads, budget_s=args.budget,
        on_row=None if args.json or args.quiet else _show,
    )  # fmt: skip
    path = args.out / ROWS_FILE
    if args.json:
        points = len(campaign_points(args.grid, rounds=args.rounds))
        print(json.dumps({"path": str(path), "measurements": len(rows), "points": points}))
    else:
        print(f"{path}: {counted(len(rows), 'measurement')}")
    return 0


def _show(row: CampaignRow) -> None:
    print(
        f"{row.pass_name} {row.shape} zipf {row.zipf_exponent}: {_time(row.latency_s)}",
        file=sys.stderr,
    )


def run_fit(args: argparse.Namespace) -> int:
    """Runs `cdmpp analytic embedding fit`; returns the exit code."""
    check_replaceable_json(
        args.out, "embedding-cpu-", what="a file of constants", option="--out", key="schema"
    )
    constants = fit_campaign(read_folder(args.data))
    constants.save(args.out)
    if args.json:
        print(json.dumps(asdict(constants)))
        return 0
    print(f"{args.out}: {constants.n} measurements, {100 * constants.l3_share:.0f} % of the L3")
    for which, costs in constants.cost_s.items():
        print(which)
        for name, cost in sorted(costs.items(), key=lambda item: -item[1]):
            print(f"  {name:28}{1e9 * cost:12.3f} ns")
    return 0


def run_evaluate(args: argparse.Namespace) -> int:
    """Runs `cdmpp analytic embedding evaluate`; returns the exit code."""
    check_plot_files(args.plots, _PLOTS)
    errors: dict[str, dict[str, KernelErrors]]
    notes: dict[str, Any]
    if not 0 <= args.hit_floor < math.inf:
        raise UsageError(f"--hit-floor {args.hit_floor}: expected a number from 0 up, as 0.0004")
    floor = {"hit_floor": args.hit_floor}
    if args.data.is_file():  # a benchmark of a GPU
        table = read_kernel_table(
            args.data, keep=args.kernels, least_batch=args.least_batch, least_rows=args.least_rows
        )
        device = kernel_device(args.device)
        options = KernelOptions(
            is_fbgemm=args.fbgemm, uses_shared_memory=not args.no_shared_memory,
        )  # fmt: skip
        predicted = predict_table(table, device, args.which, options, zipf_exponent=args.zipf)
        lines = {version: (table.latency_s, found) for version, found in predicted.items()}
        errors = {name: {args.which: kernel_errors(*both, **floor)} for name, both in lines.items()}
        notes = {"device": device.name, "dropped": table.dropped}
    else:
        if max(args.least_batch, args.least_rows) > 1:
            raise UsageError(
                f"--least-batch and --least-rows choose rows of a GPU's table, got {args.data}; "
                "leave them out"
            )
        count, judged = judge_campaign(read_folder(args.data), [(args.split, args.seed)])
        lines = {
            found.line: (found.measured_s, found.predicted_s)
            for found in judged
            if found.line in ("cpu", "trees", "lru-calibrated")
        }
        errors = {
            found.line: {
                name: own for name in PASSES if (own := found.errors(name, **floor)) is not None
            }
            for found in judged
        }
        notes = {"split": args.split, "seed": args.seed, "points": count}
    if args.plots is not None:
        make_folder(args.plots, what="plots")
        for name, text in error_plots(lines).items():
            write_text(args.plots / name, text)
    if args.json:
        values = {
            line: {group: asdict(found) for group, found in by_group.items()}
            for line, by_group in errors.items()
        }
        print(json.dumps({**notes, "lines": values}))
        return 0
    print(", ".join(f"{name} {value}" for name, value in notes.items()))
    head = f"{'line':16}{'pass':16}{'n':>6}{'GMAE':>9}{'mean':>9}{'std':>9}{'signed':>9}"
    print(head)
    for line, by_group in errors.items():
        for group, found in by_group.items():
            numbers = (found.gmae, found.mean, found.std, found.signed_mean)
            cells = "".join("      -" if v is None else f"{100 * v:7.2f} %" for v in numbers)
            print(f"{line:16}{group:16}{found.n:6}{cells}")
    return 0


def error_plots(lines: Mapping[str, tuple[FloatArray, FloatArray]]) -> dict[str, str]:
    """Returns file name -> SVG: predicted against measured times, and a histogram of errors.

    Args:
        lines: name -> (measured seconds, predicted seconds), float64 [N] each.
    """
    measured, predicted = (np.concatenate(column) for column in zip(*lines.values(), strict=True))
    which = np.repeat(np.arange(len(lines)), [len(first) for first, _ in lines.values()])
    figure, axes = new_figure(7.2, 3.6)
    places = np.arange(len(HISTOGRAM_EDGES))
    width = 0.8 / max(1, len(lines))
    for index, (name, (first, second)) in enumerate(lines.items()):
        axes.bar(
            places + (index - (len(lines) - 1) / 2) * width,
            [100 * share for share in error_histogram(np.abs(second - first) / first)],
            width,
            label=name,
            color=COLOURS[index % len(COLOURS)],
        )
    axes.set_xticks(places, [label.removesuffix(" %") for label in histogram_labels()], rotation=45)
    axes.set_xlabel("error (%)")
    axes.set_ylabel("share of kernels (%)")
    legend(axes)
    plots = predicted_against_measured(measured, predicted, which, list(lines)), svg_text(figure)
    return dict(zip(_PLOTS, plots, strict=True))


def run_report(args: argparse.Namespace) -> int:
    """Runs `cdmpp analytic embedding report`; returns the exit code."""
    return run_experiment(
        "`cdmpp analytic embedding report`", "embedding", data=args.data, out=args.out,
        seeds=args.seeds, is_json=args.json,
    )  # fmt: skip


def _add_shape(parser: argparse.ArgumentParser) -> None:
    add_table(parser, """
        --preset YAML: Path      e.g. configs/embedding/dlrm-default.yaml
        --batch N: int           samples
        --rows N: int            rows of a table
        --tables N: int          tables
        --lookups N: int         rows that a sample takes from a table
        --width N: int           values of a row
        --rows-per-block N: int  samples of a thread block (default: 256 / width)
    """)  # fmt: skip


def _add_kernel(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--pass", dest="which", choices=PASSES, default="forward")
    add_table(parser, f"""
        --device NAME = v100  GPU (default: v100)
        --version {"|".join(VERSIONS)} = lru  version of the formulas
        --fbgemm               FBGEMM's kernel
        --no-shared-memory     a kernel that does not keep indices in shared memory
        --zipf S: float = 0.0  skewed access (default: uniform)
    """)  # fmt: skip
    parser.add_argument("--reproduce-defects", action=_Removed, nargs=0, help=argparse.SUPPRESS)


class _Removed(argparse.Action):
    """A removed option, which ends the command with an error that says so."""

    def __call__(self, parser: argparse.ArgumentParser, *_: object) -> None:
        parser.error(
            f"{self.option_strings[0]} was removed: the formulas have no defects to choose from; "
            "leave it out"
        )


def _add_campaign(parser: argparse.ArgumentParser) -> None:
    add_table(parser, """
        --data PATH: Path required  campaign folder written by `measure`
    """)  # fmt: skip


def _shape(preset: Path | None, given: dict[str, int | None]) -> EmbeddingShape:
    """Returns the shape of a preset with the given sizes replaced; without one, of the sizes."""
    if preset is not None:
        return load_preset(preset).shape(**given)
    sizes = {name: value for name, value in given.items() if value is not None}
    missing = [name for name in _SIZES[:-1] if name not in sizes]
    if missing:
        options = ", ".join(f"--{name}" for name in missing)
        raise UsageError(f"no shape: give {options}, or --preset configs/embedding/mlperf.yaml")
    sizes.setdefault("rows_per_block", default_rows_per_block(max(1, sizes["width"])))
    return EmbeddingShape(**sizes)
