"""`cdmpp device add`: a description and a model of a new device within minutes."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from cdmpp.arrays import FloatArray, IntArray
from cdmpp.calibration.intervals import add_interval_metrics
from cdmpp.config import dump_text
from cdmpp.datasets.budget import of_tasks
from cdmpp.datasets.cache import load_samples
from cdmpp.datasets.extraction.machine_code import read_machine_code
from cdmpp.datasets.judge import judge_in_detail, oracle_task_median
from cdmpp.datasets.samples import Samples
from cdmpp.datasets.tenset.folder import find_devices
from cdmpp.devices.spec import DeviceSpec
from cdmpp.devices.write_file import device_file_text
from cdmpp.errors import DataError, DeviceError
from cdmpp.files.atomic import make_folder, read_json, write_json, write_text
from cdmpp.files.run_folder import claim_run_folder
from cdmpp.files.stored import from_json, to_json
from cdmpp.machine import machine, versions
from cdmpp.models.loop.progress import TrainProgress
from cdmpp.models.parts.checks import as_learned
from cdmpp.predict.estimates import load_trained
from cdmpp.predict.machine_code.model import CodeModel
from cdmpp.predict.saved_model import load_model
from cdmpp.pretrained import model_folder
from cdmpp.processes.campaign import CampaignProgress, campaign_folder
from cdmpp.text import counted
from cdmpp.training.finetune.adapted_code import compiled_s
from cdmpp.training.finetune.run import COMPILED, FINE_TUNED
from cdmpp.training.run import ORACLE, RunResult
from cdmpp.training.run_folder import run_metrics, split_facts, write_predictions
from tvm_helper.device_add.benchmarks import run_benchmarks
from tvm_helper.device_add.clock import StepClock
from tvm_helper.device_add.curve import KNEE_RULE, budgets, curve_rows, judged, knee
from tvm_helper.device_add.describe import DEVICES_FOLDER, RunBenchmarks, described
from tvm_helper.device_add.fit import (
    ONE_FACTOR,
    PRETRAINED,
    SCRATCH,
    TREES,
    Fits,
    choose_steps,
    final_model,
    point,
    zero_shot,
)
from tvm_helper.device_add.measure import (
    kernel_task_name,
    measure_options,
    measure_until,
    planned_tasks,
)
from tvm_helper.device_add.options import DeviceAddOptions
from tvm_helper.device_add.plan import AddPlan, drawn_plan, make_plan
from tvm_helper.measure.doctor import folder_report
from tvm_helper.measure.sources import reference_task
from tvm_helper.measure.target import MeasureTarget
from tvm_helper.measure.trials import WORKER_COMMAND

MEASUREMENTS = "measurements"
CURVE_FILE = "curve.json"
_PLAN_FILE, _CONFIG_FILE = "plan.json", "config.yaml"
_LEAST_TASKS = 2
#: Mean number of programs of a test task from which on its median is a baseline.
_ORACLE_PROGRAMS = 2

#: Called with (current step, progress of the step or "").
AddProgress = Callable[[str, str], None]


@dataclass(frozen=True)
class Site:
    """Environment of `add_device`; tests replace parts of it.

    Attributes:
        root: folder with `proc` and `sys`.
        benchmarks: measures bandwidth and peak.
        command: command of the worker that builds and runs programs.
        has_reference: whether a reference program is timed before every batch.
    """

    root: Path = Path("/")
    benchmarks: RunBenchmarks = run_benchmarks
    command: Sequence[str] = WORKER_COMMAND
    has_reference: bool = True


def add_device(
    options: DeviceAddOptions,
    samples_of: Callable[[], Samples],
    folder: Path,
    *,
    began: float | None = None,
    on_progress: AddProgress | None = None,
    site: Site | None = None,
) -> tuple[RunResult | None, dict[str, Any]]:
    """Probes a device, measures programs and fits models; writes a run folder without a report.

    Continues an earlier run with the same options in the folder; its time counts.

    Args:
        samples_of: extracts the programs of `options.dataset`; not called without a dataset.
        folder: run folder of the device; its measurements are in `measurements`.
        began: `time.monotonic()` at the start of the time limit; None = now.

    Returns:
        The run (None if an earlier command has finished it), and the content of `curve.json`, see
        `read_curve`.

    Raises:
        UsageError: invalid options, or options that differ from those of the folder.
        DeviceError: the machine cannot be described, or too few tasks were measured.
        DataError: too few programs, or a file cannot be read or written.
    """
    options.check()
    site = site or Site()
    show = on_progress or _ignore
    if options.dataset:
        find_devices(Path(options.dataset))
    model_dir = model_folder(options.from_run)
    model, card = load_model(model_dir)
    reader = CodeModel.load(model_dir)
    with campaign_folder(folder, what="run folder"):
        if (folder / _CONFIG_FILE).is_file():
            claim_run_folder(folder, dump_text(options))
        clock = StepClock(folder, time.monotonic() if began is None else began)
        if (folder / CURVE_FILE).is_file():
            return None, read_curve(folder)
        show("probing the device", "")
        with clock.part("probe"):
            spec, target = described(options, folder, root=site.root, benchmarks=site.benchmarks)
        # After the probe, so that options that do not fit the machine can still be corrected.
        claim_run_folder(folder, dump_text(options))
        with clock.part("choose"):
            plan = _plan(options, samples_of, folder, card, target, clock, show)
        with clock.part("measure"):
            reads_code = target.kind == "llvm" and reader is not None
            _measure(options, folder, plan, spec, target, clock, show, site, reads_code=reads_code)
        measured = _measured_samples(folder, spec)
        samples = as_learned(card.feature_schema, measured)
        learn, order = _of_names(samples, plan.learn)
        test, judging = _of_names(samples, plan.test)
        if min(len(order), len(judging)) < _LEAST_TASKS:
            raise DeviceError(
                f"only {counted(len(order), 'training task')} and "
                f"{counted(len(judging), 'test task')} measured within the time limit, expected at "
                f"least {_LEAST_TASKS} of each; use more --minutes "
                f"and another --out, or find the cause with: cdmpp doctor {folder / MEASUREMENTS}"
            )
        fits = Fits(
            folder, model, card, model_dir, learn, order, card.as_told(test), options.seed,
            measured.programs, reader, read_machine_code(folder / MEASUREMENTS),
        )  # fmt: skip
        with clock.part("fit"):
            points, details = _fit(fits, options, clock, show)
        return _finish(fits, options, spec, target, points, details, clock)


def read_curve(folder: Path) -> dict[str, Any]:
    """Returns the error curve of a device's run folder: `device`, `rows` (number of tasks, and for
    each start the metrics or None), `knee`, `interval`, `measured`, `spec`, `doubts` (sentences
    on the quality of the measurements), `seconds`, ...

    Raises:
        DataError: the folder has no error curve.
    """
    hint = "give a finished folder of `cdmpp device add` (runs/device-NAME)"
    value = read_json(folder / CURVE_FILE, what="error curve", hint=hint)
    if not isinstance(value, dict) or not isinstance(value.get("rows"), list):
        raise DataError(f"{folder / CURVE_FILE} is not an error curve; {hint}")
    return value


def _plan(
    options: DeviceAddOptions,
    samples_of: Callable[[], Samples],
    folder: Path,
    card: Any,
    target: MeasureTarget,
    clock: StepClock,
    show: AddProgress,
) -> AddPlan:
    path = folder / _PLAN_FILE
    if path.is_file():
        hint = f"remove {folder} and start again"
        plan = from_json(AddPlan, read_json(path, what="choice of tasks", hint=hint))
        if not (plan.kernels or options.dataset):
            raise DataError(f"{path} was written by an earlier version of cdmpp; {hint}")
        return plan
    show("choosing tasks", "")
    samples = samples_of() if options.dataset else None
    seconds = max(0.0, options.measure_until_s - clock.spent_s())
    if samples is not None:
        plan = make_plan(samples, card, target.kind, measure_s=seconds, seed=options.seed)
    else:
        plan = drawn_plan(
            card, partial(kernel_task_name, target=target), measure_s=seconds, seed=options.seed
        )
    write_json(path, to_json(plan))
    return plan


def _measure(
    options: DeviceAddOptions,
    folder: Path,
    plan: AddPlan,
    spec: DeviceSpec,
    target: MeasureTarget,
    clock: StepClock,
    show: AddProgress,
    site: Site,
    *,
    reads_code: bool,
) -> None:
    place = folder / MEASUREMENTS
    done = clock.notes.get("measured")
    if done:
        return
    make_folder(place / DEVICES_FOLDER, what="device file")
    comment = f"The device of these measurements (`cdmpp device add {options.name}`)."
    write_text(
        place / DEVICES_FOLDER / f"{options.name}.yaml", device_file_text(spec, comment=comment)
    )
    settings = measure_options(
        options.name, target, dataset=options.dataset, kernels=plan.kernels,
        per_task=options.per_task, seed=options.seed, machine_code=reads_code,
    )  # fmt: skip
    until = options.measure_until_s

    def watch(progress: CampaignProgress) -> None:
        left = max(0.0, until - clock.spent_s()) / 60
        failed = f", {progress.failed} failed" if progress.failed else ""
        clock.note()
        if progress.stage == "drawing":
            return
        show(
            f"measuring {counted(len(plan.learn) + len(plan.test), 'task')}",
            f"{counted(progress.done, 'program')}{failed}, at most {left:.1f} min left",
        )

    good = measure_until(
        place, settings, planned_tasks(settings, target, plan.in_turn()), target,
        is_over=lambda: clock.spent_s() >= until,
        reference=reference_task() if site.has_reference else None,
        command=site.command, on_progress=watch,
    )  # fmt: skip
    clock.note(measured=good)


def _measured_samples(folder: Path, spec: DeviceSpec) -> Samples:
    samples = load_samples(folder / MEASUREMENTS)
    return replace(samples, devices=(spec,))


def _of_names(samples: Samples, names: Sequence[str]) -> tuple[Samples, IntArray]:
    """Returns the samples of the named tasks, and int64, the measured tasks, in order."""
    place = {str(name): index for index, name in enumerate(samples.programs.tasks)}
    present = set(np.unique(samples.task_id).tolist())
    order = [place[name] for name in names if place.get(name) in present]
    tasks = np.array(order, np.int64)
    return of_tasks(samples, tasks), tasks


def _fit(
    fits: Fits, options: DeviceAddOptions, clock: StepClock, show: AddProgress
) -> tuple[dict[tuple[str, int], FloatArray], dict[tuple[str, int], dict[str, Any]]]:
    """Fits the final model, then points of the curve until the time is up."""
    points: dict[tuple[str, int], FloatArray] = {(PRETRAINED, 0): zero_shot(fits)}
    details: dict[tuple[str, int], dict[str, Any]] = {}
    most = len(fits.order)
    counts = budgets(most)
    if "steps" not in clock.notes:
        left = options.fit_until_s - clock.spent_s()
        clock.note(steps=choose_steps(fits, max(0.0, left)))
    steps = int(clock.notes["steps"])

    def progress(what: str, now: TrainProgress | None) -> None:
        show(what, f"step {now.step} of at most {now.steps}" if now else "")
        clock.note()

    points[PRETRAINED, most], details[PRETRAINED, most] = final_model(
        fits, steps, _split_facts(fits, options), versions(), progress
    )
    others = [(ONE_FACTOR, count) for count in counts]
    others += [(TREES, most), (SCRATCH, most)]
    few = [count for count in counts if count != most]
    # The cost of a fine-tuning does not depend on the number of tasks.
    others += [(start, count) for count in reversed(few) for start in (PRETRAINED, SCRATCH, TREES)]
    for start, count in others:
        like = [value["seconds"] for (name, _), value in details.items() if name == start]
        if clock.spent_s() + max(like, default=0.0) > options.fit_until_s and not _is_there(
            fits, start, count
        ):
            show(f"no time left for {start} with {counted(count, 'task')}", "")
            continue
        show(f"{start.replace('_', ' ')} with {counted(count, 'task')}", "")
        points[start, count], details[start, count] = point(fits, start, count, steps, progress)
        clock.note()
    return points, details


def _is_there(fits: Fits, start: str, count: int) -> bool:
    from tvm_helper.device_add.fit import read_point

    return read_point(fits, start, count) is not None


def _finish(
    fits: Fits,
    options: DeviceAddOptions,
    spec: DeviceSpec,
    target: MeasureTarget,
    points: dict[tuple[str, int], FloatArray],
    details: dict[tuple[str, int], dict[str, Any]],
    clock: StepClock,
) -> tuple[RunResult, dict[str, Any]]:
    """Evaluates on the test tasks; writes metrics.json, predictions.parquet and curve.json."""
    folder, test, most = fits.folder, fits.test, len(fits.order)
    trained = load_trained(folder, with_code=True)
    estimates = trained.estimate(test, latency_s=points[PRETRAINED, most])
    names = {
        (PRETRAINED, most): FINE_TUNED, (PRETRAINED, 0): "zero-shot",
        (ONE_FACTOR, most): "one-factor", (SCRATCH, most): "from scratch",
        (TREES, most): "trees on the budget",
    }  # fmt: skip
    predicted_s = {name: points[key] for key, name in names.items() if key in points}
    if trained.code is not None:
        predicted_s[COMPILED] = compiled_s(
            trained, replace(test, programs=fits.programs), fits.code
        )
    if len(test) >= _ORACLE_PROGRAMS * len(np.unique(test.task_id)):
        predicted_s[ORACLE] = oracle_task_median(test)
    lines = {name: judge_in_detail(test, values) for name, values in predicted_s.items()}
    add_interval_metrics(lines[FINE_TUNED], test, estimates.low_s, estimates.high_s)
    write_predictions(
        folder / "predictions.parquet",
        [
            ("train", fits.learn, trained.predict(fits.learn)),
            ("test", test, points[PRETRAINED, most]),
        ],
    )
    calibration = trained.card.calibration
    final = details[PRETRAINED, most]
    started = time.perf_counter()
    trained.predict(test)
    metrics = run_metrics(
        FINE_TUNED,
        trained.card,
        {"train": fits.learn, "test": test},
        lines,
        training_s=final["seconds"],
        predict_s=time.perf_counter() - started,
    ) | {name: final[name] for name in final if name not in ("seconds", "most_steps")}
    write_json(folder / "metrics.json", metrics)
    rows = curve_rows(test, budgets(most), points)
    errors = {row["tasks"]: row[PRETRAINED] and row[PRETRAINED]["median_ape"] for row in rows}
    curve = {
        "device": options.name,
        "target": dict(target.options),
        "machine": machine(),
        "versions": versions(),
        "minutes": options.minutes,
        "model": options.from_run,
        "seed": options.seed,
        "measured": {
            name: {"tasks": len(np.unique(part.task_id)), "programs": len(part)}
            for name, part in (("learn", fits.learn), ("test", test))
        },
        "rows": rows,
        "compiled": judged(test, predicted_s[COMPILED]) if COMPILED in predicted_s else None,
        "oracle": judged(test, predicted_s[ORACLE]) if ORACLE in predicted_s else None,
        "knee": {"tasks": knee(errors), "rule": KNEE_RULE},
        "interval": {
            "nominal": None if calibration is None else calibration.coverage,
            "coverage": lines[FINE_TUNED]["interval_coverage"],
            "log_width": lines[FINE_TUNED]["interval_log_width"],
        },
        "details": [
            {"start": start, "tasks": count, **value} for (start, count), value in details.items()
        ],
        "spec": {
            name: {"value": getattr(spec, name), "source": source}
            for name, source in spec.sources.items()
        },
        "doubts": folder_report(folder / MEASUREMENTS)["findings"],
        "seconds": clock.seconds(),
    }
    write_json(folder / CURVE_FILE, curve)
    return RunResult(folder, metrics, test, predicted_s, []), curve


def _split_facts(fits: Fits, options: DeviceAddOptions) -> dict[str, Any]:
    judging = len(np.unique(fits.test.task_id))
    return split_facts(
        "budget",
        options.seed,
        f"{counted(len(fits.order), 'task')} measured on {options.name}, "
        f"{'chosen by k-means' if options.dataset else 'kernels of every kind'}, evaluated on "
        f"{judging} random tasks of other workloads, all outside the training data of "
        f"{options.from_run}",
    )


def _ignore(what: str, detail: str) -> None:
    """Ignores progress."""
