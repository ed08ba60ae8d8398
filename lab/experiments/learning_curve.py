"""Error against number of training programs, for both tiers, with and without attention.

Every cell is a separate training on a share of the tasks. Its predictions for held-out tasks are
stored, so that an interrupted run continues.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from cdmpp.arrays import FloatArray
from cdmpp.datasets.cache import load_samples
from cdmpp.datasets.extraction.machine_code import MachineCode, read_machine_code
from cdmpp.datasets.extraction.merge import merged_folder
from cdmpp.datasets.samples import Samples
from cdmpp.datasets.splits import uniform_draw
from cdmpp.metrics import mean_over_owners
from cdmpp.models.gbdt import GbdtCostModel
from cdmpp.models.options import EnsembleOptions, TransformerOptions
from cdmpp.models.transformer import TransformerCostModel
from cdmpp.predict.machine_code.known import code_columns, has_code
from cdmpp.predict.machine_code.model import CodeModel, CodeRows
from cdmpp.text import markdown_table
from lab.pages import sections, write_page
from lab.paths import ROOT
from lab.stamp import COMPILED, stamp

#: Campaigns; each of their tasks is assigned to a part by its own draw.
CAMPAIGNS = ("many", "broad", "broad2", "wider", "drawn", "zen3")
SHARES = (0.125, 0.25, 0.5, 1.0)
EPOCHS = 8
#: Fractions of the tasks: the test part; test and validation part together.
_TEST, _VALIDATION = 0.1, 0.2
#: Factor on the number of programs for the extrapolation.
_TIMES = 10.0

Predict = Callable[[Samples, Samples, Samples, int], FloatArray]


def experiment(
    cache: Path = ROOT / "cache",
    seeds: tuple[int, ...] = (0, 1, 2),
    layers: tuple[int, ...] = (0, 1, 2, 4),
) -> None:
    """Writes the page (after `make tables`).

    Args:
        cache: folder of the tables; also stores the predictions.
        seeds: seeds of the trainings.
        layers: numbers of encoder layers.
    """
    folders = [cache / "data" / f"metaschedule-cpu-{name}" for name in CAMPAIGNS]
    samples = load_samples(merged_folder(folders, cache))
    code = [table for folder in folders for table in read_machine_code(folder)]
    lines: dict[str, Predict] = {
        "fast tier: trees": _trees,
        **{f"fast tier: transformer, {_layers(n)}": _transformer(n) for n in layers},
        "compiled tier: trees and a perceptron on machine code": _compiled(code),
    }
    known = np.any([has_code(samples, table) for table in code], axis=0)
    samples = samples.take(known)
    names = np.asarray(samples.programs.tasks, np.str_)
    draw = np.array([uniform_draw(f"part|{name}", 0) for name in names])[samples.task_id]
    test, validation = draw < _TEST, (draw >= _TEST) & (draw < _VALIDATION)
    order = np.array([uniform_draw(f"share|{name}", 0) for name in names])[samples.task_id]
    judged = samples.take(test)
    counts, rows, values = [], [], {}
    for share in SHARES:
        counts.append(int(np.sum((draw >= _VALIDATION) & (order < share))))
    for name, predict in lines.items():
        means, cells = [], []
        for share in SHARES:
            chosen = (draw >= _VALIDATION) & (order < share)
            errors = []
            for seed in seeds:
                place = cache / "learning-curve" / f"{name.replace(' ', '-')}-{share}-{seed}.npy"
                if not place.is_file():
                    place.parent.mkdir(parents=True, exist_ok=True)
                    train, watched = samples.take(chosen), samples.take(validation)
                    np.save(place, predict(train, watched, judged, seed))
                    print(name, share, seed, flush=True)
                errors.append(np.abs(np.log(np.load(place) / judged.latency_s)))
            mean, interval = mean_over_owners(np.mean(errors, axis=0), judged.task_id)
            means.append(mean)
            cells.append(
                f"{mean:.3f} [{interval[0]:.3f}, {interval[1]:.3f}]" if interval else f"{mean:.3f}"
            )
        slope = float(np.polyfit(np.log(counts), np.log(means), 1)[0])
        further = means[-1] * _TIMES**slope
        values[name] = {"log_error": means, "slope": slope, "extrapolated": further}
        rows.append([name, *cells, f"{100 * (1 - 2**slope):.1f} %", f"{further:.3f}"])
    heads = ["what is learned", *(f"{count:,} programs" for count in counts),
             "less with each doubling", f"{_TIMES:.0f} times more, by that line"]  # fmt: skip
    text = sections("learning-curve", table=markdown_table(heads, rows))
    found = stamp("python -m lab run learning-curve", schemas=COMPILED)
    kept = {"programs": counts, "judged": len(judged), "seeds": seeds, "lines": values}
    write_page("learning-curve", text, kept, found)


def _layers(count: int) -> str:
    return {0: "no attention", 1: "1 encoder layer"}.get(count, f"{count} encoder layers")


def _trees(train: Samples, validation: Samples, test: Samples, seed: int) -> FloatArray:
    model = GbdtCostModel(EnsembleOptions().trees)
    model.fit(train, validation, seed=seed)
    return model.predict(test)


def _transformer(layers: int) -> Predict:
    default = TransformerOptions()
    options = replace(
        default,
        network=replace(default.network, layers=layers),
        loss=replace(default.loss, relative_weight=0.0),
        loop=replace(default.loop, epochs=EPOCHS),
    )

    def predict(train: Samples, validation: Samples, test: Samples, seed: int) -> FloatArray:
        model = TransformerCostModel(options)
        model.fit(train, validation, seed=seed)
        return model.predict(test)

    return predict


def _compiled(code: Sequence[MachineCode]) -> Predict:
    columns = {name: row for table in code for name, row in table.columns.items()}
    targets = {label: text for table in code for label, text in table.targets.items()}
    table = MachineCode(targets, columns, code[0].kind)

    def rows_of(samples: Samples) -> CodeRows:
        nothing = np.ones(len(samples))
        return CodeRows.of(samples, code_columns(samples, table), nothing)

    def predict(train: Samples, validation: Samples, test: Samples, seed: int) -> FloatArray:
        known, watched, asked = map(rows_of, (train, validation, test))
        schema = dict(train.programs.feature_schema)
        found = CodeModel.learned(known, watched, targets=targets, feature_schema=schema, seed=seed)
        return np.asarray(np.exp(np.mean(found.parts_log_s(asked), axis=0)))

    return predict
