"""What machine code says of the time of GPU programs, workloads held out.

Workloads are shared out into folds by a hash; each is judged by trees and a perceptron that never
saw it, another fold says when trees stop and how much each counts. The model without is the same
trees and perceptron on the leaf and device columns alone.
"""

from __future__ import annotations

import gzip
import hashlib
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cdmpp.api.featurisers import tvm_featurisers
from cdmpp.conformal import owner_means
from cdmpp.datasets.cache import load_samples
from cdmpp.datasets.extraction.machine_code import read_machine_code
from cdmpp.datasets.extraction.merge import merged_folder
from cdmpp.datasets.judge import oracle_task_median
from cdmpp.datasets.read_report import ReadReport
from cdmpp.datasets.samples import Samples
from cdmpp.datasets.sources import extract_any
from cdmpp.datasets.splits import uniform_draw, workload_of
from cdmpp.datasets.tenset.record_file import read_records
from cdmpp.devices.vector import device_vector
from cdmpp.files.atomic import replaced_folder, write_columns
from cdmpp.models.parts.labels import least_mape_factor
from cdmpp.models.parts.pooling import pooled_features
from cdmpp.models.roofline import RooflineCostModel
from cdmpp.predict.machine_code.model import CodeModel, CodeRows
from cdmpp.programs.code_layout import CODE_LAYOUTS
from cdmpp.records import program_id_of_text
from cdmpp.text import markdown_table, percent_text
from lab.figures import Columns as Table
from lab.figures import (
    between,
    device_figures,
    geometric_mean,
    mean_over_devices,
    read_columns,
    rows_of,
    spread,
)
from lab.pages import filled, write_page
from lab.paths import ROOT, SHARED_DATA
from lab.stamp import PROGRAMS, stamp
from tvm_helper.measure.records_code import write_records_code

NAME = "gpu-code"
ANSOR = ROOT / "data" / "ansor-gpu"
#: Programs of a workload: of each device's AutoTVM log, and of Ansor's records.
PER_TASK = {"v100": 8, "gtx1650": 8, "t4": 40}
OF_ANSOR = 5
#: What is judged -> its extracted folders.
SETS = {
    "AutoTVM": tuple(f"autotvm-{label}" for label in PER_TASK),
    "Ansor": ("ansor-v100",),
}
SEEDS, FOLDS, DRAWS = (0, 1, 2), 5, 2000
LINES = {
    "constant": "one latency for everything (median)",
    "oracle": "the median of the program's own workload and device (known only afterwards)",
    "roofline": "the roofline of the loop nest, one factor a device",
    "core": "the time of the instructions, one factor",
    "leaf_trees": "leaf columns: trees",
    "leaf_perceptron": "leaf columns: perceptron",
    "leaf": "leaf columns: both (the model without)",
    "code_trees": "and machine code: trees",
    "code_perceptron": "and machine code: perceptron",
    "code": "and machine code: both (compiled)",
}
#: The line that the others are compared with.
_BASE = "leaf"

FloatArray = NDArray[np.float64]


def experiment(
    logs: Path = SHARED_DATA / "autotvm",
    work: Path = ROOT / "runs" / NAME,
    seeds: tuple[int, ...] = SEEDS,
) -> None:
    """Compiles and evaluates what is missing (an hour of one core, no GPU), and writes the page.

    Needs `pip install 'cdmpp[nvrtc]'`, AutoTVM logs and the side environment (docs/legacy-tvm.md).
    """
    write_tables(logs, work)
    found: dict[str, list[Table]] = {}
    for name, folders in SETS.items():
        samples, code = compiled([work / folder for folder in folders], work)
        found[name] = []
        for seed in seeds:
            file = work / f"{name}-{seed}.parquet"
            if not file.is_file():
                write_columns(file, judged(samples, code, seed))
            found[name].append(read_columns(file))
    page(found)


def write_tables(logs: Path, work: Path) -> None:
    """Extracts and compiles what is judged; goes on where it was."""
    for label, count in PER_TASK.items():
        log, out = logs / f"{label}.json.gz", work / f"autotvm-{label}"
        extract_any(log, out, [label], per_task=count, jobs=1, featurisers=tvm_featurisers())
        write_records_code(log, out, [label], jobs=1)
    records, out = work / "ansor", work / "ansor-v100"
    _choose_records(ANSOR / "measure_records" / "v100", records)
    info = ANSOR / "network_info"
    extract_any(records, out, ["v100"], network_info=info, jobs=1)
    write_records_code(records, out, ["v100"], network_info=info, jobs=1)


def _choose_records(folder: Path, out: Path) -> None:
    with replaced_folder(out, what="chosen records") as new:
        own = new / "measure_records" / folder.name
        own.mkdir(parents=True)
        for path in sorted(folder.iterdir()):
            lines = {
                program_id_of_text("tenset", one.workload_key, one.schedule, one.target_kind): (
                    one.line
                )
                for one in read_records(path, ReadReport())
            }
            names = sorted(lines, key=lambda name: hashlib.sha1(name.encode()).hexdigest())
            text = gzip.decompress(path.read_bytes()).decode().splitlines()
            chosen = [text[lines[name] - 1] for name in names[:OF_ANSOR]]
            (own / path.name.removesuffix(".gz")).write_text("\n".join(chosen) + "\n")


def compiled(folders: list[Path], work: Path) -> tuple[Samples, NDArray[np.float32]]:
    """Returns the programs of extracted folders that did compile, and float32 [N, columns]."""
    tables = [table for folder in folders for table in read_machine_code(folder)]
    of_label = {label: table.columns for table in tables for label in table.targets}
    samples = load_samples(merged_folder(folders, work), cache_dir=work)
    labels = [samples.devices[place].name for place in samples.device]
    names = samples.programs.program_id[samples.program]
    found = [of_label[label].get(str(name)) for label, name in zip(labels, names, strict=True)]
    known = np.array([one is not None for one in found])
    return samples.take(known), np.array([one for one in found if one is not None], np.float32)


def judged(samples: Samples, code: NDArray[np.float32], seed: int) -> Table:
    """Returns what each line says of each program, trained without its workload."""
    work = np.array([workload_of(str(task)) for task in samples.programs.tasks])[samples.task_id]
    fold = np.array([int(FOLDS * uniform_draw(one, seed)) for one in work])
    median = np.empty(len(samples))
    said = {name: np.empty(len(samples)) for name in LINES}
    for held_out in range(FOLDS):
        test = fold == held_out
        median[test] = np.median(samples.latency_s[~test])
    leaf, own = _leaf_rows(samples, median), CodeRows.of(samples, code, median, kind="gpu")
    for held_out in range(FOLDS):
        test, watched = fold == held_out, fold == (held_out + 1) % FOLDS
        parts = (~(test | watched), watched, test)
        without = _fitted(leaf, parts, seed)
        model_log_s = without.estimate(leaf)[0]
        rows = replace(own, model_log_s=model_log_s)
        both = _fitted(rows, parts, seed)
        for name, model, seen in (("leaf", without, leaf), ("code", both, rows)):
            part = seen.take(test)
            trees, perceptron = model.parts_log_s(part)
            said[f"{name}_trees"][test] = np.exp(trees)
            said[f"{name}_perceptron"][test] = np.exp(perceptron)
            said[name][test] = np.exp(model.estimate(part)[0])
        roofline = RooflineCostModel()
        roofline.fit(samples.take(~test), samples.take(watched), seed=seed)
        said["roofline"][test] = roofline.predict(samples.take(test))
        factor = least_mape_factor(np.exp(own.core_log_s[~test]), samples.latency_s[~test])
        said["core"][test] = factor * np.exp(own.core_log_s[test])
    said["constant"], said["oracle"] = median, oracle_task_median(samples)
    devices = np.array([one.name for one in samples.devices], object)[samples.device]
    return {
        "workload": work.astype(object), "device": devices, "operator": own.kind.astype(object),
        "measured_s": samples.latency_s, **said,
    }  # fmt: skip


def _leaf_rows(samples: Samples, median: FloatArray) -> CodeRows:
    """Returns the rows of what is known without a compiler."""
    none = np.zeros((len(samples), len(CODE_LAYOUTS["gpu"].names)), np.float32)
    rows = CodeRows.of(samples, none, median, kind="gpu")
    device = np.stack([device_vector(one) for one in samples.devices])[samples.device]
    leaves = pooled_features(samples.programs, samples.program)
    columns = np.concatenate([leaves, device], axis=1).astype(np.float32)
    return replace(rows, columns=columns, core_log_s=np.zeros(len(samples)))


def _fitted(rows: CodeRows, parts: tuple[NDArray[np.bool_], ...], seed: int) -> CodeModel:
    train, watched, test = (rows.take(part) for part in parts)
    return CodeModel.fit(
        (train, watched, test), targets={}, feature_schema={}, seed=seed, kind="gpu"
    )


def page(sets: dict[str, list[Table]]) -> None:
    """Writes the page and its numbers."""
    parts, values = [], {}
    for name, tables in sets.items():
        lines = {line: _figures(tables, line) for line in LINES}
        groups = {
            key: {str(one): _groups(tables, key, str(one)) for one in np.unique(tables[0][key])}
            for key in ("device", "operator")
        }
        values[name] = {"lines": lines, **groups}
        parts.append(_section(name, tables[0], lines, groups))
    found = stamp("python -m lab run gpu-code", schemas=(*PROGRAMS, "gpu_code"))
    text = filled(NAME, sections="\n\n".join(parts))
    write_page(NAME, text, {"sets": values}, found)


def _section(
    name: str, table: Table, lines: Mapping[str, Any], groups: Mapping[str, Mapping[str, Any]]
) -> str:
    heads = ["what is said", "MAPE", "median APE", "log error", "Spearman in a workload",
             "MAPE, over leaf columns", "error of a workload, over leaf columns"]  # fmt: skip
    rows = [
        [
            LINES[line], *(spread(one[key]) for key in ("mape", "median_ape")),
            *(f"{np.mean(one[key]):.2f}" for key in ("log_error", "spearman")),
            *("1" if line == _BASE else between(*one[key]) for key in ("ratio", "of_workload")),
        ]
        for line, one in lines.items()
    ]  # fmt: skip
    text = [f"## {name}: {len(table['measured_s']):,} programs", "", markdown_table(heads, rows)]
    for key, found in groups.items():
        heads = [key, "workloads", "programs", "constant", "oracle", "leaf columns",
                 "and machine code", "over leaf columns"]  # fmt: skip
        rows = [
            [
                one, str(group["workloads"]), f"{group['programs']:,}",
                *(percent_text(group[line]) for line in ("constant", "oracle", _BASE, "code")),
                between(*group["ratio"]),
            ]
            for one, group in found.items()
        ]  # fmt: skip
        text += ["", f"MAPE by {key}:", "", markdown_table(heads, rows, "l" + "r" * 7)]
    return "\n".join(text)


def _error(table: Table, line: str) -> FloatArray:
    return np.asarray(np.abs(table[line] / table["measured_s"] - 1.0), np.float64)


def _figures(tables: list[Table], line: str) -> dict[str, Any]:
    """Returns the figures of a line: means over devices, one a seed; ratios over all seeds."""
    found: dict[str, Any] = {key: [] for key in ("mape", "median_ape", "log_error", "spearman")}
    for table in tables:
        _, task = np.unique(table["workload"].astype(np.str_), return_inverse=True)
        log_ratio = np.abs(np.log(table[line] / table["measured_s"]))
        log_error = mean_over_devices(table, log_ratio)
        figures = device_figures(table, line, _error(table, line), task)
        for key, value in {**figures, "log_error": log_error}.items():
            found[key].append(value)
    return {**found, **_ratios(tables, line)}


def _groups(tables: list[Table], key: str, name: str) -> dict[str, Any]:
    own = [rows_of(table, table[key] == name) for table in tables]
    shown = {
        line: float(np.mean([_error(table, line).mean() for table in own]))
        for line in ("constant", "oracle", _BASE, "code")
    }
    sizes = {"workloads": len(np.unique(own[0]["workload"])), "programs": len(own[0]["workload"])}
    return {**sizes, **shown, **_ratios(own, "code")}


def _ratios(tables: list[Table], line: str) -> dict[str, list[float]]:
    """Returns a line's error over the base's, its low and high end (95 %, workloads drawn again
    and again): of the MAPE, mean over devices, and of a workload, geometric mean.
    """
    device = tables[0]["device"].astype(np.str_)
    owner = np.char.add(np.char.add(device, " "), tables[0]["workload"].astype(np.str_))
    names, task = np.unique(owner, return_inverse=True)
    own, base = (
        owner_means(np.mean([_error(table, one) for table in tables], axis=0), task)
        for one in (line, _BASE)
    )
    count = np.bincount(task).astype(np.float64)
    label = np.array([name.split(" ")[0] for name in names])
    rng = np.random.default_rng(0)

    def mape_ratio(rows: list[NDArray[np.int64]]) -> float:
        means = [
            [np.average(error[some], weights=count[some]) for some in rows] for error in (own, base)
        ]
        return float(np.mean(means[0]) / np.mean(means[1]))

    places = [np.flatnonzero(label == one) for one in np.unique(label)]
    drawn = [mape_ratio([rng.choice(some, len(some)) for some in places]) for _ in range(DRAWS)]
    return {
        "ratio": [mape_ratio(places), *np.quantile(drawn, [0.025, 0.975]).tolist()],
        "of_workload": list(geometric_mean(np.log(own / base).tolist())),
    }
