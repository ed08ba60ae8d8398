"""Process in which programs are drawn, built and run; see `cdmpp.processes.serve`.

It has no state that the campaign needs: a crash costs only the program that caused it.
"""

from __future__ import annotations

import contextlib
import json
import random
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import lru_cache, partial
from math import inf, isnan
from pathlib import Path
from typing import Any

from cdmpp.config import from_dict
from cdmpp.datasets.metaschedule.databases import RECORD_FILE
from cdmpp.errors import DataError, ReplayError
from cdmpp.processes.forked import Forked
from cdmpp.processes.serve import ProgramError, error_text, serve
from cdmpp.programs.machine_code.columns import machine_code_columns
from cdmpp.records import program_id
from tvm_helper.measure.options import TimingOptions, Way, rpc_address
from tvm_helper.measure.timing import repeat_until_steady

#: Codes of `cdmpp.records.ERROR_CODE_NAMES`.
_INSTANTIATION, _COMPILE_HOST, _COMPILE_DEVICE, _RUNTIME, _BUILD_TIMEOUT, _UNKNOWN = (
    1,
    2,
    3,
    4,
    6,
    8,
)
#: Maximum number of random schedules tried per requested one.
_TRIES_EACH = 60
#: Consecutive repeated schedules after which a space counts as exhausted.
_MOST_REPEATED = 200
_FLUSH = "cache_flush_cpu_non_first_arg"
Begin = Callable[[], None]


def main() -> None:
    """Handles requests until the campaign ends."""
    build = Forked(
        _build,
        _prepare_builds,
        timeout_code=_BUILD_TIMEOUT,
        died_code=_COMPILE_HOST,
        killed_code=_UNKNOWN,
    )
    serve({"draw": _draw, "build": build, "run": _run}, _prepare)


def _prepare() -> None:
    import tvm_helper.compat  # noqa: F401  slow; not part of a program's time


def _prepare_builds() -> None:
    """Builds a program, so that forked children have all libraries loaded."""
    from tvm_helper.compat import te, tvm
    from tvm_helper.tasks.build import export
    from tvm_helper.tasks.machine_code import code_of_built
    from tvm_helper.tasks.schedule_of_trace import schedule_of
    from tvm_helper.tir.packing import runnable

    a = te.placeholder((8,), name="A")
    function = te.create_prim_func([a, te.compute((8,), lambda i: a[i] + a[i], name="B")])
    module = schedule_of(tvm.IRModule({"main": function}), [[], []]).mod
    with tempfile.TemporaryDirectory() as folder:
        executable = tvm.compile(runnable(module), target="llvm")
        machine_code_columns(code_of_built(executable))
        export(executable, f"{folder}/first.so")


def _draw(request: dict[str, Any], begin: Begin) -> dict[str, Any]:
    """Returns distinct traces of a task; fewer than requested if its `way` has no more.

    With a choosing model, returns the traces with the lowest predictions, in ascending order.
    """
    from tvm_helper.compat import Target

    begin()
    task = _task(request["task"])
    target = Target(request["target"])
    count = int(request["count"]) * int(request["choose_from"])
    drawn: dict[str, Any] = {}
    modules: list[Any] = []
    repeated = 0
    # A seed per task: with a shared one, all tasks would get similar schedules.
    own = random.Random(f"{request['seed']}|{task['workload_key']}").randrange(1 << 30)
    schedules = _schedules(
        request.get("way", "random"), _module(request["task"]), target, own, count * _TRIES_EACH
    )
    with _database_traces(_module(request["task"]), target, request["scratch"]) as trace_of:
        for schedule in schedules:
            trace = trace_of(schedule)
            key = program_id("metaschedule", task["workload_key"], trace, str(target.kind.name))
            repeated = repeated + 1 if key in drawn else 0
            if key not in drawn:
                drawn[key] = trace
                modules.append(schedule.mod)
            if len(drawn) == count or repeated == _MOST_REPEATED:
                break
    if not drawn:
        raise ProgramError(_INSTANTIATION, f"no valid schedule in {count * _TRIES_EACH} tries")
    keys = list(drawn)
    if request["choose_from"] > 1:
        latency_s = _predicted(request, modules, target)
        order = sorted(range(len(keys)), key=latency_s.__getitem__)[: int(request["count"])]
        keys = [keys[place] for place in order]
    return {"programs": [{"program_id": key, "schedule": drawn[key]} for key in keys]}


def _schedules(way: Way, module: Any, target: Any, seed: int, tries: int) -> Iterator[Any]:
    """Yields schedules of a module, see `Way`."""
    from tvm_helper.drawn.hand_schedule import hand_schedules
    from tvm_helper.tasks.default_schedule import default_schedule, dlight_schedule
    from tvm_helper.tasks.sampling import valid_schedules

    try:
        if way == "random":
            yield from valid_schedules(module, target, seed=seed, tries=tries)
        elif way == "hand":
            threads = int(target.attrs.get("num-cores", 1))
            yield from hand_schedules(module, seed=seed, threads=threads, tries=tries)
        else:
            # On a GPU, relax applies DLight, whose schedule has a trace.
            is_plain = way == "default" and target.kind.name == "llvm"
            make = default_schedule if is_plain else dlight_schedule
            yield make(module, target)
    except DataError as error:
        raise ProgramError(_INSTANTIATION, str(error)) from None


def _predicted(request: dict[str, Any], modules: Sequence[Any], target: Any) -> list[float]:
    """Returns the predicted seconds; infinity for a module without features."""
    from cdmpp.predict.requested_device import asked_device
    from tvm_helper.cost_model.module_scores import module_samples, predict_modules

    trained = _model(request["model"])
    device = trained.card.told(asked_device(request["device"], trained.card))
    version = trained.card.leaf_extra_version
    found = module_samples(modules, target, device, version=version)
    seconds = predict_modules(trained.model, found, len(modules)).tolist()
    return [inf if isnan(one) else one for one in seconds]


def _build(request: dict[str, Any], begin: Begin) -> dict[str, Any]:
    """Builds a program into a file; returns data types and shapes of its arguments.

    The program is a task with a schedule, or a scheduled `module` as JSON in a file.
    """
    from tvm_helper.compat import Target, tvm
    from tvm_helper.tasks.build import arguments_of, export
    from tvm_helper.tasks.machine_code import code_of_built
    from tvm_helper.tir.packing import runnable

    begin()
    target = Target(request["target"])
    is_gpu = str(target.kind.name) != "llvm"
    try:
        if "module" in request:
            module = tvm.ir.load_json(Path(request["module"]).read_text(encoding="utf-8"))
        else:
            module = scheduled_module(request["task"], request["schedule"])
    except (ReplayError, DataError) as error:
        raise ProgramError(_INSTANTIATION, str(error)) from None
    try:
        module = runnable(module)
        executable = tvm.compile(module, target=target)
        export(executable, request["artifact"])
    except Exception as error:  # TVM and the linker raise many types
        code = _COMPILE_DEVICE if is_gpu else _COMPILE_HOST
        raise ProgramError(code, error_text(error)) from None
    answer: dict[str, Any] = {"arguments": arguments_of(module)}
    if "task" in request:
        for number, bound in _task(request["task"]).get("indices", {}).items():
            answer["arguments"][int(number)].append(bound)
    if request.get("machine_code"):
        columns = machine_code_columns(code_of_built(executable))
        answer["machine_code"] = [] if columns is None else columns.tolist()
    return answer


def scheduled_module(task_file: str, schedule: Any) -> Any:
    """Returns the scheduled module of a program, from a Tenset record's steps or a trace.

    Raises:
        ReplayError: the schedule does not apply to the task.
    """
    if "dag" in _task(task_file):
        from cdmpp.programs.ansor.dag import parse_dag
        from tvm_helper.tir.schedule_of_record import replay

        return replay(parse_dag(_task(task_file)["dag"]), schedule).mod
    from tvm_helper.tasks.schedule_of_trace import schedule_of

    return schedule_of(_module(task_file), schedule).mod


def _run(request: dict[str, Any], begin: Begin) -> dict[str, Any]:
    """Times a built program; returns its costs in seconds."""
    from tvm_helper.compat import tvm
    from tvm_helper.tasks.build import random_tensors

    artifact = Path(request["artifact"])
    timing = from_dict(TimingOptions, request["timing"])
    remote = _remote(request) if request["rpc"] else None
    begin()
    try:
        if remote is None:
            module = tvm.runtime.load_module(str(artifact))
        else:
            remote.upload(str(artifact))
            module = remote.load_module(artifact.name)
        place = remote if remote is not None else tvm.runtime
        kind = request["target_kind"]
        device = place.cpu(0) if kind == "llvm" else place.device(kind, 0)
        arguments = random_tensors(request["arguments"], device)

        def time_repeats(count: int) -> Sequence[float]:
            options: dict[str, Any] = {"number": 1, "repeat": count}
            if timing.flush_cache and kind == "llvm":
                options["f_preproc"] = _FLUSH
            else:
                options["min_repeat_ms"] = round(1e3 * timing.min_repeat_s)
            evaluator = module.time_evaluator("main", device, **options)
            return [float(cost) for cost in evaluator(*arguments).results]

        if timing.clock == "cpu":
            time_repeats = partial(_cpu_times, module, device, arguments, timing.min_repeat_s)
        costs = repeat_until_steady(time_repeats, timing)
        if timing.keep == "minimum":
            return {"costs_s": [min(costs)], "timings_s": costs}
        return {"costs_s": costs}
    except Exception as error:  # TVM's runtime raises many types
        raise ProgramError(_RUNTIME, error_text(error)) from None
    finally:
        if remote is not None:
            with contextlib.suppress(Exception):  # the connection may be lost
                remote.remove(artifact.name)


def _cpu_times(
    module: Any, device: Any, arguments: Sequence[Any], least_s: float, count: int
) -> list[float]:
    """Returns `count` timings of one run: CPU seconds of this thread.

    A timing divides the time of at least `least_s` by its number of runs, including the warm-up.
    """
    costs: list[float] = []
    runs = 1
    while len(costs) < count:
        evaluator = module.time_evaluator("main", device, number=runs, repeat=1)
        begin_s = time.thread_time()
        evaluator(*arguments)
        used_s = time.thread_time() - begin_s
        if used_s >= least_s:
            costs.append(used_s / (runs + 1))
        else:
            runs = max(2 * runs, int(1.2 * runs * least_s / max(used_s, 1e-6)))
    return costs


def _remote(request: Mapping[str, Any]) -> Any:
    """Returns a session on a device of the tracker; waits until one is free."""
    from tvm import rpc

    host, port, key = rpc_address(request["rpc"])
    tracker = rpc.connect_tracker(host, port)
    return tracker.request(key, session_timeout=int(request["timeout_s"]) + 1)


@lru_cache(maxsize=8)
def _task(path: str) -> dict[str, Any]:
    value: dict[str, Any] = json.loads(Path(path).read_text(encoding="utf-8"))
    return value


@lru_cache(maxsize=8)
def _module(path: str) -> Any:
    from tvm_helper.compat import tvm

    return tvm.ir.load_json(_task(path)["module"])


@lru_cache(maxsize=1)
def _model(folder: str) -> Any:
    from tvm_helper.cost_model.state_file import load_for_search

    return load_for_search(Path(folder))


@contextlib.contextmanager
def _database_traces(module: Any, target: Any, scratch: str) -> Iterator[Callable[[Any], Any]]:
    """Yields a function that returns a schedule's trace as a MetaSchedule database writes it.

    `Trace.as_json` writes layouts and booleans differently, and a program's identity depends on the
    text.
    """
    from tvm_helper.compat import meta_schedule

    database = meta_schedule.database
    with tempfile.TemporaryDirectory(dir=scratch) as folder:
        made = database.JSONDatabase(work_dir=folder)
        workload = made.commit_workload(module)
        with (Path(folder) / RECORD_FILE).open(encoding="utf-8") as lines:

            def trace_of(schedule: Any) -> Any:
                record = database.TuningRecord(schedule.trace, workload, [1.0], target, [])
                made.commit_tuning_record(record)
                return json.loads(lines.readline())[1][0]

            yield trace_of


if __name__ == "__main__":
    main()
