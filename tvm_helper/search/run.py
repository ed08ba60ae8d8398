"""`cdmpp search`: search for schedules with TVM's MetaSchedule and a cost model."""

from __future__ import annotations

import hashlib
import json
import logging
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from cdmpp.config import to_dict
from cdmpp.devices.registry import find_device
from cdmpp.errors import CdmppError, DataError
from cdmpp.files.atomic import sha256_file, write_json
from cdmpp.predict.estimates import TrainedModel
from cdmpp.predict.saved_model import read_card
from cdmpp.processes.campaign import show_nothing
from cdmpp.programs.featurise import is_gpu_kind
from tvm_helper.compat import import_tensor_intrinsics, meta_schedule
from tvm_helper.measure.health import machine
from tvm_helper.measure.tables import failures_by_kind
from tvm_helper.measure.target import (
    MeasureTarget,
    check_machine,
    measure_target,
    with_registered_label,
)
from tvm_helper.measure.trials import LEAST_FREE_BYTES, WORKER_COMMAND, TrialRunner
from tvm_helper.search.final_module import FINAL_COMMAND, make_final
from tvm_helper.search.folder_files import FINAL_FILE, SUMMARY_FILE, read_final
from tvm_helper.search.options import SearchOptions
from tvm_helper.search.progress import SearchProgress
from tvm_helper.search.session import SearchSession
from tvm_helper.search.store import SearchStore, open_store
from tvm_helper.search.summary import search_summary
from tvm_helper.search.tasks import (
    SearchTask,
    by_expected_share,
    named_tasks,
    tasks_of_network,
)
from tvm_helper.search.tvm_hooks import ClockedModel, SessionBuilder, SessionRunner, SessionStrategy
from tvm_helper.search.verifier import Verifier

#: More trials than any search has, so that the session ends the search instead of TVM.
_NO_BOUND = 1 << 30
_log = logging.getLogger("cdmpp")


@dataclass(frozen=True)
class SearchPlan:
    """A search before it starts.

    Attributes:
        options: options of the search.
        target: compile target.
        tasks: tasks, largest expected share first.
        unknown: name -> number of a network's calls that are not tensor programs.
        left_out: name -> reason of tasks without a schedule.
        model: the trained model; None if there is none for the device.
        model_note: reason why `model` is None.
        verifier: chooses among the built candidates; None = all of them are run.
    """

    options: SearchOptions
    target: MeasureTarget
    tasks: tuple[SearchTask, ...]
    unknown: dict[str, int]
    left_out: dict[str, str]
    model: TrainedModel | None
    model_note: str
    verifier: Verifier | None

    def settings(self) -> dict[str, Any]:
        """Returns the content of the search's file; `fixed` must not change in a continuation."""
        options = self.options
        is_ours = options.cost_model == "cdmpp"
        scorer = None
        if is_ours and self.model is not None:
            is_gpu = is_gpu_kind(self.target.tvm_target().kind.name)
            scorer = self.model.scorer("gpu" if is_gpu else "cpu").kind
        fixed = {
            **self.target.to_json(), "tasks": sorted(task.key for task in self.tasks),
            "cost_model": options.cost_model, "seed": options.seed,
            "model": options.model if is_ours else None,
            "finetune_every": options.finetune_every if is_ours else None,
            "neighbours": True if is_ours and options.neighbours else None,
            "safety_net": options.safety_net if is_ours else None,
            "network": None if options.network is None else sha256_file(Path(options.network)),
            "timing": options.timing.to_json(),
        }  # fmt: skip
        return {
            "fixed": fixed, "options": to_dict(options), "machine": machine(),
            "tasks": [task.to_json() for task in self.tasks], "unknown": self.unknown,
            "left_out": self.left_out, "model_note": self.model_note, "scorer": scorer,
            "round_size": options.round_size(len(self.tasks)),
        }  # fmt: skip


def plan_search(options: SearchOptions, *, device_folders: Sequence[Path] = ()) -> SearchPlan:
    """Returns the tasks of a search with their predictions; measures and writes nothing.

    Raises:
        UsageError: invalid options, an unknown task, or `verify` with a model that does not read
            the machine code of the device and target.
        DataError: a file cannot be read, there is no model, or no task has a schedule.
        DeviceError: an unknown device, or another device than this machine.
    """
    options.check()
    options = with_registered_label(options, device_folders)
    target = measure_target(options, device_folders)
    spec = find_device(options.device, device_folders)
    check_machine(options.device, target.tvm_target(), spec, is_forced=options.force)
    tvm_target = target.tvm_target()
    import_tensor_intrinsics(tvm_target.kind.name)  # before TVM imports them slowly
    unknown: dict[str, int] = {}
    if options.network is not None:
        tasks, unknown = tasks_of_network(Path(options.network), options.network_sizes, tvm_target)
    else:
        tasks = named_tasks(options.task)
    model, note = _trained(options)
    verifier = _verifier(options, model, tvm_target)
    ordered, left_out = by_expected_share(tasks, tvm_target, options.device, model)
    return SearchPlan(options, target, tuple(ordered), unknown, left_out, model, note, verifier)


def run_search(
    plan: SearchPlan,
    folder: Path,
    *,
    on_progress: Callable[[SearchProgress], None] | None = None,
    command: Sequence[str] = WORKER_COMMAND,
    final_command: Sequence[str] = FINAL_COMMAND,
    least_free_bytes: int = LEAST_FREE_BYTES,
) -> dict[str, Any]:
    """Runs a search in a folder, or continues the one in the folder; returns the summary.

    Args:
        plan: the search.
        folder: folder of the search, created if missing.
        on_progress: called after every step.
        command: command of the workers that build and time trials.
        final_command: command of the worker that compiles and times the module.
        least_free_bytes: free disk space below which the disk counts as full.

    Raises:
        UsageError: another process uses the folder, or it has a search with other settings.
        DataError: a file cannot be read or written, the disk is full, or all trials failed.
            Finished measurements are kept.
        DeviceError: a worker cannot be started, too many consecutive trials fail, or the module
            cannot be compiled.
    """
    folder = Path(folder)
    show = on_progress or show_nothing
    tvm_target = plan.target.tvm_target()
    with open_store(folder, plan.tasks, tvm_target, plan.settings()) as store:
        before = store.journal.measured_count
        with TrialRunner(
            plan.options, plan.target, folder, command=command, least_free_bytes=least_free_bytes
        ) as runner:
            reason = "finished"
            if before < plan.options.trials:
                reason = _search(plan, store, runner, tvm_target, show)
        final = read_final(folder)
        if final is None or final["trials"] != store.journal.measured_count:
            _check_measured(store)
            make_final(
                plan.options, plan.target, plan.tasks, store, reason, show, command=final_command
            )
        elif final["reason"] != reason:
            write_json(folder / FINAL_FILE, {**final, "reason": reason})
        summary = search_summary(folder)
        write_json(folder / SUMMARY_FILE, summary)
        return summary


def _search(
    plan: SearchPlan,
    store: SearchStore,
    runner: TrialRunner,
    target: Any,
    show: Callable[[SearchProgress], None],
) -> str:
    """Measures the missing trials; returns the reason for the end."""
    options = plan.options
    model = ClockedModel(_cost_model(plan, target))
    session = SearchSession(options, store, plan.tasks, runner, model, show, verifier=plan.verifier)
    model.session = session
    threads = options.search_threads or len(os.sched_getaffinity(0))
    seeds = [_seed(options.seed, task.key, store.journal.measured_count) for task in plan.tasks]
    contexts = [
        meta_schedule.TuneContext(
            mod=task.module, target=target, space_generator="post-order-apply",
            search_strategy=SessionStrategy(session, number, options.population, seed),
            task_name=task.task.name, rand_state=seed, num_threads=threads, logger=_log,
        )
        for number, (task, seed) in enumerate(zip(plan.tasks, seeds, strict=True))
    ]  # fmt: skip
    with session.guard_tuning():
        meta_schedule.tune.tune_tasks(
            tasks=contexts, task_weights=[float(task.weight) for task in plan.tasks],
            work_dir=str(store.folder), max_trials_global=_NO_BOUND, max_trials_per_task=_NO_BOUND,
            num_trials_per_iter=options.verify * options.round_size(len(plan.tasks)),
            builder=SessionBuilder(session), runner=SessionRunner(session),
            database=store.database, cost_model=model,
            measure_callbacks=[meta_schedule.measure_callback.UpdateCostModel()],
            task_scheduler=meta_schedule.task_scheduler.GradientBased(seed=options.seed + 1),
        )  # fmt: skip
    session.finish()
    show(session.progress("searched"))
    return session.reason


def _cost_model(plan: SearchPlan, target: Any) -> Any:
    options = plan.options
    if options.cost_model == "random":
        return meta_schedule.cost_model.RandomModel(seed=options.seed)
    if options.cost_model == "xgb":
        np.random.seed(options.seed)
        return meta_schedule.cost_model.XGBModel(num_tuning_cores=1)
    from tvm_helper.cost_model.metaschedule import CdmppCostModel

    assert plan.model is not None
    model = CdmppCostModel(
        plan.model, options.device, finetune_every=options.finetune_every,
        neighbours=options.neighbours, safety_net=options.safety_net, seed=options.seed,
    )  # fmt: skip
    model.check_target(target)
    return model


def _trained(options: SearchOptions) -> tuple[TrainedModel | None, str]:
    """Returns the model; None and the reason if it is missing and the cost model needs none."""
    from cdmpp.predict.requested_device import asked_device
    from cdmpp.pretrained import model_folder

    try:
        folder = model_folder(options.model)
        asked_device(options.device, read_card(folder))
        from tvm_helper.cost_model.state_file import load_for_search  # loads torch

        trained = load_for_search(folder, with_code=options.verify > 1)
    except CdmppError as error:
        if options.cost_model == "cdmpp" or options.verify > 1:
            raise
        return None, str(error)
    return trained, ""


def _verifier(options: SearchOptions, model: TrainedModel | None, target: Any) -> Verifier | None:
    if options.verify == 1:
        return None
    assert model is not None
    return Verifier(model, options.device, target)


def _seed(seed: int, key: str, trials: int) -> int:
    """Returns a seed for TVM that depends on the trials, so that a continued search draws anew."""
    text = json.dumps([seed, key, trials])
    return 1 + int(hashlib.sha256(text.encode()).hexdigest()[:7], 16)


def _check_measured(store: SearchStore) -> None:
    entries = [e for e in store.journal.entries if e["kind"] == "measured"]
    if any(entry["costs_s"] for entry in entries):
        return
    kinds = failures_by_kind(entries)
    said = "; ".join(f"{k['count']} {k['name']}: {k['first_text']}" for k in kinds)
    raise DataError(
        f"{store.folder}: no program could be measured ({said or 'none was proposed'}); no "
        "schedule to save. Fix the program, or use another --out with other timeouts"
    )
