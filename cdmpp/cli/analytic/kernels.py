"""`cdmpp analytic kernels`: kernels of serving frameworks on current GPUs."""

from __future__ import annotations

import argparse
import json
from dataclasses import asdict

from cdmpp.analytic.gpu_kernels.calls import (
    KERNELS,
    SOFTWARE,
    make_call,
    taken_for_one_machine,
)
from cdmpp.analytic.gpu_kernels.evaluate import (
    EvaluatedKernels,
    evaluate_kernels,
    evaluate_packaged,
)
from cdmpp.analytic.gpu_kernels.families import is_in_16_bits
from cdmpp.analytic.gpu_kernels.model import MODEL_FILE, GpuKernels
from cdmpp.analytic.gpu_kernels.training import fit_kernels
from cdmpp.analytic.sweep.calls import TORCH
from cdmpp.analytic.sweep.predict import SweptKernels
from cdmpp.cli.analytic.evaluated import kernels_page, packaged_page
from cdmpp.cli.shared.lab import run_experiment
from cdmpp.cli.shared.option_table import add_table
from cdmpp.cli.shared.options import (
    add_device_spec_option,
    add_output_options,
    labels_of,
    parse_seeds,
)
from cdmpp.comparison.run import asked_devices
from cdmpp.config import named_values
from cdmpp.errors import UsageError
from cdmpp.files.atomic import check_replaceable_json
from cdmpp.machine import versions
from cdmpp.report.page import page_markdown
from cdmpp.text import counted, interval_text

_DATA = (
    "folder with gemm, context_attention, generation_attention and nccl as .parquet, or with files "
    "in the layout of llm-kernels (moe, mla)"
)


def add_fit_options(parser: argparse.ArgumentParser) -> None:
    """Adds the options of `analytic kernels fit`."""
    add_table(parser, f"""
        --data DIR: Path required  {_DATA}
        --out DIR: Path required  the model's folder
        --onto DIR: Path          keep the other families of this model (pretrained: packaged)
        --families NAME,NAME = ''   fit these kernels only, e.g. sparse (default: all in --data)
        --seed N: int = 0         seed of the rows drawn (default: 0)
    """)  # fmt: skip
    add_output_options(parser)


def add_evaluate_options(parser: argparse.ArgumentParser) -> None:
    """Adds the options of `analytic kernels evaluate`."""
    add_table(parser, f"""
        --data DIR: Path required  {_DATA}
        --seeds N,N = '0,1,2'  one fit for each seed (default: 0,1,2)
        --families NAME,NAME = ''  evaluate these kernels only (default: all in --data)
        --packaged             evaluate a fitted model on all rows, instead of refitting with parts
            held out
        --model DIR: Path = pretrained  the model of --packaged (default: the packaged one)
        --out DIR: Path        also write gpu-kernels.md, .csv and .json there
    """)  # fmt: skip
    add_output_options(parser)


def add_predict_options(parser: argparse.ArgumentParser) -> None:
    """Adds the options of `analytic kernels predict`."""
    add_table(parser, f"""
        --kernel NAME required  one of {", ".join(KERNELS)}
        --call NAME=VALUE,... required  e.g. m=64,n=4096,k=4096,dtype=fp8 for gemm; an unknown name
            lists the expected ones
        --device LABEL[,LABEL]...  GPUs
        --software {"|".join((*SOFTWARE, TORCH))}  framework of the kernels (default: the one with
            most of the data)
        --software-version V  version of the framework, e.g. 0.24.0, for LLM serving kernels
            (default: the newest with measurements of this kind of kernel)
        --model DIR: Path = pretrained  a fitted model (default: pretrained, the packaged one)
    """)  # fmt: skip
    add_device_spec_option(parser, of="if the file names a sweep, the sweep corrects the times")
    add_output_options(parser)


def run_fit(args: argparse.Namespace) -> int:
    """Runs `cdmpp analytic kernels fit`; returns the exit code."""
    check_replaceable_json(
        args.out / MODEL_FILE, "gpu-kernels-", what="a fitted model", option="--out"
    )
    onto = None if args.onto is None else GpuKernels.at(args.onto)
    about = {"versions": versions()}
    model = fit_kernels(
        args.data, seed=args.seed, about=about, onto=onto, families=_names(args.families)
    )
    model.save(args.out)
    if args.json:
        print(json.dumps({"model": str(args.out), **model.about}))
        return 0
    for family, facts in model.about["families"].items():
        print(
            f"{family:12}{facts['rows']:8} measurements, "
            f"{counted(len(model.devices[family]), 'device')}"
        )
    print(f"model: {args.out}")
    return 0


def run_evaluate(args: argparse.Namespace) -> int:
    """Runs `cdmpp analytic kernels evaluate`; returns the exit code."""
    if args.packaged:
        if args.out is not None:
            raise UsageError(
                "--packaged cannot be combined with --out; redirect the output, or use --json"
            )
        if args.families:
            raise UsageError("--packaged cannot be combined with --families")
        judged = evaluate_packaged(args.data, GpuKernels.at(args.model))
        print_evaluated(judged, is_json=args.json)
        return 0
    if args.out is not None:
        return run_experiment(
            "--out", "gpu-kernels", data=args.data, out=args.out, seeds=args.seeds,
            families=args.families, is_json=args.json,
        )  # fmt: skip
    judged = evaluate_kernels(args.data, parse_seeds(args.seeds), _names(args.families))
    print_evaluated(judged, is_json=args.json)
    return 0


def print_evaluated(judged: EvaluatedKernels, *, is_json: bool) -> None:
    """Prints the scores of `evaluate`, as a page or as JSON."""
    if is_json:
        print(json.dumps([score.row("family", "covered") for score in judged.scores]))
    else:
        is_packaged = all(score.split == "packaged" for score in judged.scores)
        page = packaged_page(judged) if is_packaged else kernels_page(judged)
        print(page_markdown(page), end="")


def run_predict(args: argparse.Namespace) -> int:
    """Runs `cdmpp analytic kernels predict`; returns the exit code."""
    model = SweptKernels(GpuKernels.at(args.model))
    call = make_call(args.kernel, _parse(args.call))
    devices, _ = asked_devices(labels_of(args.device), args.device_spec or (), {}, takes_all=False)
    rows = []
    for device in devices:
        times = model.times([call], device, software=args.software, version=args.software_version)
        is_corrected = model.corrected([call], device, software=args.software)[0]
        row = {
            "kernel": args.kernel,
            "call": asdict(call),
            "device": device.name,
            "latency_s": float(times.latency_s[0]),
            "low_s": float(times.low_s[0]),
            "high_s": float(times.high_s[0]),
            "floor_s": float(times.floor_s[0]),
            "bound": times.bound[0],
            "device_was_measured": times.is_seen_device,
            "version_was_measured": times.is_seen_version,
            "answered_by": times.versions[0] or None,
            "is_in_16_bits": is_in_16_bits(call, device),
            "is_taken_for_one_machine": bool(taken_for_one_machine(call)),
            "is_corrected_by_sweep": is_corrected,
        }
        rows.append(row)
        if not args.json:
            text = interval_text(row["latency_s"], row["low_s"], row["high_s"])
            share = f"{row['floor_s'] / row['latency_s']:.0%} of its {row['bound']} bound"
            notes = [] if times.is_seen_device else ["unseen GPU: from other GPUs"]
            notes += ["corrected by its sweep"] if is_corrected else []
            notes += ["no fp8 units: in 16 bits"] if row["is_in_16_bits"] else []
            if not times.is_seen_version:
                notes.append("unseen version: from other versions")
            elif times.versions[0]:
                notes.append(times.versions[0])
            note = f"   ({'; '.join(notes)})" if notes else ""
            print(f"{device.name:14}{text:>24}   {share}{note}")
    if args.json:
        print(json.dumps(rows))
    elif reason := taken_for_one_machine(call):
        print(f"\n{reason}")
    return 0


def _names(text: str) -> list[str]:
    return [name for name in text.split(",") if name]


def _parse(text: str) -> dict[str, str]:
    return named_values(text, "--call", "NAME=VALUE,..., e.g. m=64,n=4096,k=4096")
