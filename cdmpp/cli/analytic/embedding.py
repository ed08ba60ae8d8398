"""`cdmpp analytic embedding`: embedding lookups on GPUs and CPUs."""

from __future__ import annotations

import argparse
import json
import sys
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cdmpp.cli.shared.options import add_output_options, is_quiet
from cdmpp.text import seconds_text

if TYPE_CHECKING:
    from cdmpp.analytic.embedding.campaign import CampaignRow
    from cdmpp.analytic.embedding.cpu import CpuCaches
    from cdmpp.analytic.embedding.cpu_probe import MemorySweep
    from cdmpp.analytic.embedding.gpu import KernelOptions
    from cdmpp.analytic.embedding.shapes import EmbeddingShape

_PASSES = ("forward", "backward-sgd", "backward-adagrad", "backward-dense")
_VERSIONS = ("plain", "resident", "curve", "cold-start", "lru")
_SIZES = ("batch", "rows", "tables", "lookups", "width", "rows_per_block")
_MACHINE_FILE = "machine.json"

_time = partial(seconds_text, digits=5)


def register(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Adds the `embedding` command and its subcommands."""
    parser = subparsers.add_parser("embedding", help="embedding lookups, forward and backward")
    commands = parser.add_subparsers(dest="embedding_command", required=True, metavar="COMMAND")
    predict = commands.add_parser("predict", help="traffic, hit rate and time of one lookup kernel")
    _add_shape(predict)
    _add_kernel(predict)
    predict.add_argument("--constants", type=Path, metavar="JSON", help="of a CPU, made by `fit`")
    add_output_options(predict)
    predict.set_defaults(run=run_predict)
    measure = commands.add_parser(
        "measure", help="time torch's embedding_bag on this CPU; continues where it stopped"
    )
    measure.add_argument("--out", type=Path, required=True, metavar="DIR", help="campaign folder")
    measure.add_argument(
        "--grid", choices=("smoke", "quick", "full"), default="full", help="how many shapes"
    )
    measure.add_argument("--rounds", type=int, default=3, metavar="N", help="visits to each shape")
    measure.add_argument("--threads", type=int, default=1, metavar="N", help="threads of torch")
    measure.add_argument(
        "--budget", type=float, default=0.3, metavar="S", help="seconds of timed calls a shape"
    )
    add_output_options(measure)
    measure.set_defaults(run=run_measure)
    fit = commands.add_parser("fit", help="fit a CPU's costs to a campaign")
    _add_campaign(fit)
    fit.add_argument("--out", type=Path, required=True, metavar="JSON", help="where they go")
    add_output_options(fit)
    fit.set_defaults(run=run_fit)
    evaluate = commands.add_parser(
        "evaluate", help="errors on a campaign (split by shape), or on a GPU benchmark's CSV file"
    )
    _add_campaign(evaluate)
    _add_kernel(evaluate)
    evaluate.add_argument("--split", choices=("shape", "table", "rows"), default="shape")
    evaluate.add_argument("--seed", type=int, default=0, metavar="N", help="of the split")
    evaluate.add_argument(
        "--kernels", choices=("embedding", "none"), default="embedding", help="GPU: rows to keep"
    )
    evaluate.add_argument("--plots", type=Path, metavar="DIR", help="write SVG plots there")
    add_output_options(evaluate)
    evaluate.set_defaults(run=run_evaluate)
    report = commands.add_parser("report", help="write embedding.md, .csv and .json")
    _add_campaign(report)
    report.add_argument("--out", type=Path, required=True, metavar="DIR", help="where they go")
    report.add_argument("--seeds", default="0,1,2", metavar="N,N", help="of the splits")
    add_output_options(report)
    report.set_defaults(run=run_report)


def run_predict(args: argparse.Namespace) -> int:
    """Runs `cdmpp analytic embedding predict`; returns the exit code."""
    shape = _shape(args)
    if args.constants is not None:
        return _predict_cpu(args, shape)
    from cdmpp.analytic.embedding.devices import kernel_device
    from cdmpp.analytic.embedding.gpu import estimate

    device = kernel_device(args.device)
    options = _options(args, shape)
    found = estimate(shape, device, args.which, options=options)
    if args.json:
        value = {"device": device.name, "source": device.source, "pass": args.which}
        print(json.dumps({**value, "version": args.version, **asdict(shape), **asdict(found)}))
        return 0
    print(
        f"{_time(found.latency_s)}  {args.which} on {device.name} ({args.version}), "
        f"limited by {found.limit}\n"
        f"  DRAM traffic {found.dram_bytes / 1e6:.3f} MB, "
        f"L2 traffic {found.l2_bytes / 1e6:.3f} MB\n"
        f"  hit rate {100 * found.hit_rate:.2f} %, {found.cached_rows} rows of a table fit into "
        f"its part of the L2\n  rates: {device.source}"
    )
    return 0


def run_measure(args: argparse.Namespace) -> int:
    """Runs `cdmpp analytic embedding measure`; returns the exit code."""
    import torch

    from cdmpp.analytic.embedding.bench import time_calls
    from cdmpp.analytic.embedding.campaign import campaign_points, run_campaign
    from cdmpp.analytic.embedding.cpu_probe import (
        cpu_caches,
        keep_freed_memory,
        machine_facts,
        memory_sweep,
    )
    from cdmpp.errors import UsageError
    from cdmpp.files.atomic import make_folder, write_json

    if args.rounds < 1 or args.threads < 1:
        raise UsageError("measure: --rounds and --threads must be at least 1")
    folder = make_folder(args.out, what="measurements")
    torch.set_num_threads(args.threads)
    keeps = keep_freed_memory()
    facts_path = folder / _MACHINE_FILE
    if not facts_path.exists():
        sweep = memory_sweep(lambda call: time_calls(call, args.budget).latency_s)
        facts = machine_facts(cpu_caches(), sweep, threads=args.threads)
        write_json(facts_path, {**facts, "allocator_keeps_freed_memory": keeps})

    def show(row: CampaignRow) -> None:
        print(
            f"{row.pass_name} {row.shape} zipf {row.zipf_exponent}: {_time(row.latency_s)}",
            file=sys.stderr,
        )

    points = campaign_points(args.grid, rounds=args.rounds)
    on_row = None if is_quiet(args) else show
    path = folder / "measurements.csv"
    rows = run_campaign(points, path, budget_s=args.budget, on_row=on_row)
    if args.json:
        print(json.dumps({"path": str(path), "measurements": len(rows), "points": len(points)}))
    else:
        print(f"{path}: {len(rows)} measurements")
    return 0


def run_fit(args: argparse.Namespace) -> int:
    """Runs `cdmpp analytic embedding fit`; returns the exit code."""
    from cdmpp.analytic.embedding.campaign import best_of_rounds
    from cdmpp.analytic.embedding.cpu import fit_cpu, write_constants
    from cdmpp.analytic.embedding.evaluate import points_of

    rows, caches, _, machine = _campaign(args.data)
    points, measured_s = points_of(best_of_rounds(rows))
    origin = {"machine": machine["processor"], "versions": machine["versions"]}
    constants = fit_cpu(points, measured_s, caches, origin=origin)
    write_constants(args.out, constants)
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
    from cdmpp.analytic.embedding.errors import KernelErrors

    errors: dict[str, dict[str, KernelErrors]]
    if _is_gpu_table(args.data):
        errors, plots, notes = _evaluate_gpu(args)
    else:
        errors, plots, notes = _evaluate_cpu(args)
    if args.plots is not None:
        _write_plots(args.plots, plots())
    if args.json:
        print(
            json.dumps(
                {
                    **notes,
                    "lines": {
                        line: {group: asdict(found) for group, found in by_group.items()}
                        for line, by_group in errors.items()
                    },
                }
            )
        )
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
    from cdmpp.analytic.embedding.campaign import best_of_rounds, round_spread
    from cdmpp.analytic.embedding.cpu import CountedWork
    from cdmpp.analytic.embedding.evaluate import SPLITS, judge, points_of
    from cdmpp.files.atomic import make_folder, sha256_file, write_json, write_text
    from cdmpp.machine import commit, versions
    from cdmpp.report.embedding_results import (
        result_rows,
        results_csv,
        results_page,
        summary,
    )
    from cdmpp.report.page import page_markdown

    seeds = _seeds(args.seeds)
    rows, caches, sweep, machine = _campaign(args.data)
    points, measured_s = points_of(best_of_rounds(rows))
    counted = CountedWork(caches)
    judged = []
    for split in SPLITS:
        # The largest tables are the same whatever the seed.
        for seed in seeds if split != "rows" else seeds[:1]:
            judged += judge(
                points, measured_s, caches, sweep, split=split, seed=seed, counted=counted
            )
    results = result_rows(judged)
    spread = sorted(round_spread(rows))
    loads = [row.load_average for row in rows]
    facts: dict[str, Any] = {
        "command": "make bench-embedding",
        "commit": commit(),
        "versions": versions(),
        "machine": machine,
        "data_hash": sha256_file(args.data / "measurements.csv"),
        "seeds": list(seeds),
        "measurements": len(rows),
        "points": len(points),
        "rounds": 1 + max(row.round for row in rows),
        "load_range": [min(loads), max(loads)],
        "round_spread": spread[len(spread) // 2] if spread else 0.0,
    }
    out = make_folder(args.out, what="results")
    texts = {
        "embedding.md": page_markdown(results_page(results, facts)),
        "embedding.csv": results_csv(results, "cpu-1t"),
    }
    for name, text in texts.items():
        write_text(out / name, text)
    write_json(out / "embedding.json", {**facts, "summary": summary(results)})
    if args.json:
        print(json.dumps({**facts, "summary": summary(results)}))
    else:
        print(texts["embedding.md"])
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
    parser.add_argument("--pass", dest="which", choices=_PASSES, default="forward")
    parser.add_argument("--version", choices=_VERSIONS, default="lru", help="which formulas")
    parser.add_argument("--fbgemm", action="store_true", help="FBGEMM's kernel")
    parser.add_argument(
        "--no-shared-memory", action="store_true", help="a kernel that reads indices again"
    )
    parser.add_argument(
        "--reproduce-defects", action="store_true", help="keep what is wrong in the original"
    )
    parser.add_argument(
        "--zipf", type=float, default=0.0, metavar="S", help="skewed access (default: uniform)"
    )


def _add_campaign(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--data", type=Path, required=True, metavar="PATH", help="folder made by `measure`"
    )


def _shape(args: argparse.Namespace) -> EmbeddingShape:
    from cdmpp.analytic.embedding.shapes import EmbeddingShape, default_rows_per_block, load_preset
    from cdmpp.errors import UsageError

    given = {name: getattr(args, name) for name in _SIZES}
    if args.preset is not None:
        return load_preset(args.preset).shape(**given)
    missing = [name for name in _SIZES[:-1] if given[name] is None]
    if missing:
        options = ", ".join(f"--{name}" for name in missing)
        raise UsageError(f"no shape: give {options}, or --preset configs/embedding/mlperf.yaml")
    if given["rows_per_block"] is None:
        given["rows_per_block"] = default_rows_per_block(max(1, args.width))
    return EmbeddingShape(**given)


def _options(args: argparse.Namespace, shape: EmbeddingShape) -> KernelOptions:
    from cdmpp.analytic.embedding.cache_hits import zipf_popularity
    from cdmpp.analytic.embedding.gpu import KernelOptions
    from cdmpp.errors import UsageError

    if args.zipf and args.version != "lru":
        raise UsageError(f"--zipf {args.zipf}: version {args.version} knows uniform access only")
    return KernelOptions(
        version=args.version,
        is_fbgemm=args.fbgemm,
        uses_shared_memory=not args.no_shared_memory,
        reproduces_defects=args.reproduce_defects,
        popularity=zipf_popularity(shape.rows, args.zipf) if args.zipf else None,
    )


def _predict_cpu(args: argparse.Namespace, shape: EmbeddingShape) -> int:
    from cdmpp.analytic.embedding.cpu import CpuPoint, cpu_work, read_constants

    constants = read_constants(args.constants)
    point = CpuPoint(args.which, shape, args.zipf)
    latency_s = float(constants.latency_s([point])[0])
    work = cpu_work(point, constants.caches, l3_share=constants.l3_share)
    parts = {name: cost * work[name] for name, cost in constants.cost_s[args.which].items()}
    if args.json:
        value = {"pass": args.which, "latency_s": latency_s, "parts_s": parts}
        print(json.dumps({**value, **asdict(shape), "zipf": args.zipf}))
        return 0
    print(f"{_time(latency_s)}  {args.which} on {constants.origin.get('machine', 'a CPU')}")
    for name, part in sorted(parts.items(), key=lambda item: -item[1]):
        print(f"  {100 * part / latency_s:5.1f} %  {name.replace('_', ' ')}")
    return 0


def _is_gpu_table(path: Path) -> bool:
    return path.is_file()


def _evaluate_gpu(args: argparse.Namespace) -> tuple[Any, Any, dict[str, Any]]:
    import numpy as np

    from cdmpp.analytic.embedding.devices import kernel_device
    from cdmpp.analytic.embedding.errors import kernel_errors
    from cdmpp.analytic.embedding.gpu import VERSIONS, estimate
    from cdmpp.analytic.embedding.kernel_table import read_kernel_table
    from cdmpp.errors import UsageError

    table = read_kernel_table(args.data, keep=args.kernels)
    shapes = table.embedding_shapes()
    device = kernel_device(args.device)
    predicted: dict[str, np.ndarray[Any, np.dtype[np.float64]]] = {}
    for version in VERSIONS:
        asked = argparse.Namespace(**{**vars(args), "version": version})
        if version != "lru":
            asked.zipf = 0.0
        try:
            predicted[version] = np.array(
                [
                    estimate(s, device, args.which, options=_options(asked, s)).latency_s
                    for s in shapes
                ]
            )
        except UsageError:
            continue  # a version without this pass has no line
    if not predicted:
        raise UsageError(f"no version describes {args.which} on a GPU; choose another --pass")
    errors = {
        version: {args.which: kernel_errors(table.latency_s, value)}
        for version, value in predicted.items()
    }

    def plots() -> dict[str, str]:
        from cdmpp.report.embedding_results import error_histogram_plot
        from cdmpp.report.plots import predicted_against_measured

        which = np.repeat(np.arange(len(predicted)), len(shapes))
        measured = np.tile(table.latency_s, len(predicted))
        shares = {
            name: np.abs(value - table.latency_s) / table.latency_s
            for name, value in predicted.items()
        }
        return {
            "predicted.svg": predicted_against_measured(
                measured, np.concatenate(list(predicted.values())), which, list(predicted)
            ),
            "histogram.svg": error_histogram_plot(shares),
        }

    return errors, plots, {"device": device.name, "dropped": table.dropped}


def _evaluate_cpu(args: argparse.Namespace) -> tuple[Any, Any, dict[str, Any]]:
    from cdmpp.analytic.embedding.campaign import best_of_rounds
    from cdmpp.analytic.embedding.evaluate import judge, points_of
    from cdmpp.analytic.embedding.shapes import PASSES

    rows, caches, sweep, _ = _campaign(args.data)
    points, measured_s = points_of(best_of_rounds(rows))
    judged = judge(points, measured_s, caches, sweep, split=args.split, seed=args.seed)
    errors = {
        entry.line: {which: found for which in PASSES if (found := entry.errors(which)) is not None}
        for entry in judged
    }

    def plots() -> dict[str, str]:
        import numpy as np

        from cdmpp.report.embedding_results import error_histogram_plot, scatter_plot

        shown = [entry for entry in judged if entry.line in ("cpu", "trees", "lru-calibrated")]
        shares = {
            entry.line: np.abs(entry.predicted_s - entry.measured_s) / entry.measured_s
            for entry in shown
        }
        return {"predicted.svg": scatter_plot(shown), "histogram.svg": error_histogram_plot(shares)}

    return errors, plots, {"split": args.split, "seed": args.seed, "points": len(points)}


def _campaign(
    folder: Path,
) -> tuple[list[CampaignRow], CpuCaches, MemorySweep, dict[str, Any]]:
    """Returns (rows, caches, memory sweep, facts) of a campaign folder.

    Raises:
        DataError: a file is missing or not as it should be.
    """
    from cdmpp.analytic.embedding.campaign import read_campaign
    from cdmpp.analytic.embedding.cpu import CpuCaches
    from cdmpp.analytic.embedding.cpu_probe import MemorySweep
    from cdmpp.errors import DataError

    rows = read_campaign(folder / "measurements.csv")
    path = folder / _MACHINE_FILE
    try:
        facts = json.loads(path.read_text("utf-8"))
        return rows, CpuCaches(**facts["caches"]), MemorySweep(**facts["memory_sweep"]), facts
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise DataError(
            f"{path}: cannot read the machine's facts ({error}); make them: "
            f"cdmpp analytic embedding measure --out {folder}"
        ) from None


def _seeds(text: str) -> tuple[int, ...]:
    from cdmpp.errors import UsageError

    try:
        return tuple(int(part) for part in text.split(","))
    except ValueError:
        raise UsageError(f"--seeds {text!r}: expected whole numbers, e.g. 0,1,2") from None


def _write_plots(folder: Path, plots: dict[str, str]) -> None:
    from cdmpp.files.atomic import make_folder, write_text

    make_folder(folder, what="plots")
    for name, text in plots.items():
        write_text(folder / name, text)
