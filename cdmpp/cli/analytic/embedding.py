"""`cdmpp analytic embedding`: embedding lookups on GPUs and CPUs."""

from __future__ import annotations

import argparse
import json
import sys
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

from cdmpp.analytic.embedding.campaign import (
    ROWS_FILE,
    CampaignRow,
    campaign_points,
    measure_campaign,
    read_folder,
)
from cdmpp.analytic.embedding.cpu import CpuConstants, CpuPoint, cpu_parts_s
from cdmpp.analytic.embedding.devices import kernel_device
from cdmpp.analytic.embedding.errors import KernelErrors, kernel_errors
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
from cdmpp.cli.shared.options import add_output_options, parse_seeds
from cdmpp.errors import UsageError
from cdmpp.files.atomic import make_folder, write_text
from cdmpp.report.embedding_results import embedding_report, error_plots
from cdmpp.text import interval_text, seconds_text

_time = partial(seconds_text, digits=5)
_SIZES = ("batch", "rows", "tables", "lookups", "width", "rows_per_block")


def add_predict_options(parser: argparse.ArgumentParser) -> None:
    """Adds the options of `analytic embedding predict`."""
    _add_shape(parser)
    _add_kernel(parser)
    parser.add_argument("--constants", type=Path, metavar="JSON", help="of a CPU, made by `fit`")
    parser.add_argument(
        "--measured", type=Path, metavar="CSV",
        help="a profiler's table of such kernels, same pass and access: makes an interval",
    )  # fmt: skip
    parser.add_argument(
        "--measured-on", metavar="NAME", help="the GPU that ran them (default: that of --device)"
    )
    add_output_options(parser)


def add_measure_options(parser: argparse.ArgumentParser) -> None:
    """Adds the options of `analytic embedding measure`."""
    parser.add_argument("--out", type=Path, required=True, metavar="DIR", help="campaign folder")
    parser.add_argument(
        "--grid", choices=("smoke", "quick", "full"), default="full", help="how many shapes"
    )
    parser.add_argument("--rounds", type=int, default=3, metavar="N", help="visits to each shape")
    parser.add_argument("--threads", type=int, default=1, metavar="N", help="threads of torch")
    parser.add_argument(
        "--budget", type=float, default=0.3, metavar="S", help="seconds of timed calls a shape"
    )
    add_output_options(parser)


def add_fit_options(parser: argparse.ArgumentParser) -> None:
    """Adds the options of `analytic embedding fit`."""
    _add_campaign(parser)
    parser.add_argument("--out", type=Path, required=True, metavar="JSON", help="where they go")
    add_output_options(parser)


def add_evaluate_options(parser: argparse.ArgumentParser) -> None:
    """Adds the options of `analytic embedding evaluate`."""
    _add_campaign(parser)
    _add_kernel(parser)
    parser.add_argument("--split", choices=("shape", "table", "rows"), default="shape")
    parser.add_argument("--seed", type=int, default=0, metavar="N", help="of the split")
    parser.add_argument(
        "--kernels", choices=("embedding", "none"), default="embedding", help="GPU: rows to keep"
    )
    parser.add_argument("--plots", type=Path, metavar="DIR", help="write SVG plots there")
    add_output_options(parser)


def add_report_options(parser: argparse.ArgumentParser) -> None:
    """Adds the options of `analytic embedding report`."""
    _add_campaign(parser)
    parser.add_argument("--out", type=Path, required=True, metavar="DIR", help="where they go")
    parser.add_argument("--seeds", default="0,1,2", metavar="N,N", help="of the splits")
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
        raise UsageError(f"--zipf {args.zipf}: version {args.version} knows uniform access only")
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
        f"its part of the L2\n  rates: {device.source}"
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
        print(f"{path}: {len(rows)} measurements")
    return 0


def _show(row: CampaignRow) -> None:
    print(
        f"{row.pass_name} {row.shape} zipf {row.zipf_exponent}: {_time(row.latency_s)}",
        file=sys.stderr,
    )


def run_fit(args: argparse.Namespace) -> int:
    """Runs `cdmpp analytic embedding fit`; returns the exit code."""
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
    errors: dict[str, dict[str, KernelErrors]]
    notes: dict[str, Any]
    if args.data.is_file():  # a benchmark of a GPU
        table = read_kernel_table(args.data, keep=args.kernels)
        device = kernel_device(args.device)
        options = KernelOptions(
            is_fbgemm=args.fbgemm, uses_shared_memory=not args.no_shared_memory,
        )  # fmt: skip
        predicted = predict_table(table, device, args.which, options, zipf_exponent=args.zipf)
        lines = {version: (table.latency_s, found) for version, found in predicted.items()}
        errors = {name: {args.which: kernel_errors(*both)} for name, both in lines.items()}
        notes = {"device": device.name, "dropped": table.dropped}
    else:
        count, judged = judge_campaign(read_folder(args.data), [(args.split, args.seed)])
        lines = {
            found.line: (found.measured_s, found.predicted_s)
            for found in judged
            if found.line in ("cpu", "trees", "lru-calibrated")
        }
        errors = {
            found.line: {name: own for name in PASSES if (own := found.errors(name)) is not None}
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


def run_report(args: argparse.Namespace) -> int:
    """Runs `cdmpp analytic embedding report`; returns the exit code."""
    value, page = embedding_report(
        args.data, args.out, seeds=parse_seeds(args.seeds), command="python -m lab run embedding"
    )
    print(json.dumps(value) if args.json else page)
    return 0


def _add_shape(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--preset", type=Path, metavar="YAML", help="e.g. configs/embedding/dlrm-default.yaml"
    )
    helps = {
        "batch": "samples",
        "rows": "rows of a table",
        "tables": "tables",
        "lookups": "rows that a sample takes from a table",
        "width": "values of a row",
        "rows_per_block": "samples of a thread block (default: 256 / width)",
    }
    for name in _SIZES:
        option = f"--{name.replace('_', '-')}"
        parser.add_argument(option, type=int, metavar="N", help=helps[name])


def _add_kernel(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--device", default="v100", metavar="NAME", help="GPU (default: v100)")
    parser.add_argument("--pass", dest="which", choices=PASSES, default="forward")
    parser.add_argument("--version", choices=VERSIONS, default="lru", help="which formulas")
    parser.add_argument("--fbgemm", action="store_true", help="FBGEMM's kernel")
    parser.add_argument(
        "--no-shared-memory", action="store_true", help="a kernel that reads indices again"
    )
    parser.add_argument("--reproduce-defects", action=_Removed, nargs=0, help=argparse.SUPPRESS)
    parser.add_argument(
        "--zipf", type=float, default=0.0, metavar="S", help="skewed access (default: uniform)"
    )


class _Removed(argparse.Action):
    """An option of the last release that ends with one sentence."""

    def __call__(self, parser: argparse.ArgumentParser, *_: object) -> None:
        raise UsageError(
            f"{self.option_strings[0]} was removed: the formulas have no defects to choose from; "
            "leave it out"
        )


def _add_campaign(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--data", type=Path, required=True, metavar="PATH", help="folder made by `measure`"
    )


def _shape(preset: Path | None, given: dict[str, int | None]) -> EmbeddingShape:
    """Returns the shape of a preset, changed by the sizes that are given, or of the sizes."""
    if preset is not None:
        return load_preset(preset).shape(**given)
    sizes = {name: value for name, value in given.items() if value is not None}
    missing = [name for name in _SIZES[:-1] if name not in sizes]
    if missing:
        options = ", ".join(f"--{name}" for name in missing)
        raise UsageError(f"no shape: give {options}, or --preset configs/embedding/mlperf.yaml")
    sizes.setdefault("rows_per_block", default_rows_per_block(max(1, sizes["width"])))
    return EmbeddingShape(**sizes)
