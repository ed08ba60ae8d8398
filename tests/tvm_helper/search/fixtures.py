"""A model of an invented machine, and builders and runners of TVM that measure on it."""

from __future__ import annotations

import tempfile
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np

from cdmpp.analytic.roofline.programs import leaf_work
from cdmpp.datasets.samples import Samples
from cdmpp.devices.registry import load_registry
from cdmpp.models.assemble import AskedProgram, assemble_samples
from cdmpp.models.nets.options import LoopOptions, NetOptions
from cdmpp.models.options import TransformerOptions
from cdmpp.models.transformer import TransformerCostModel
from cdmpp.predict.saved_model import ModelCard, task_digests
from cdmpp.programs.compact_ast import CompactAst
from cdmpp.training.run_folder import save_trained
from tests.tvm_helper.sampled import sample_schedules, sample_target
from tvm_helper.compat import derived_object, import_tensor_intrinsics, te, tvm
from tvm_helper.compat import meta_schedule as ms
from tvm_helper.tasks.build import random_tensors
from tvm_helper.tir.features import featurise_modules

DEVICE = "epyc-avx2-2c"
TASKS = 24
PROGRAMS = 6
_OPTIONS = TransformerOptions(
    network=NetOptions(hidden=16, layers=1, heads=2, feed_forward=16, head_hidden=16, members=1),
    loop=LoopOptions(epochs=12, programs_per_batch=16, learning_rate=3e-3),
)


def matmul(rows: int, columns: int = 32, depth: int = 32) -> Any:
    """A matrix product that is not scheduled."""
    a = te.placeholder((rows, depth), name="A")
    b = te.placeholder((depth, columns), name="B")
    k = te.reduce_axis((0, depth), name="k")
    c = te.compute((rows, columns), lambda i, j: te.sum(a[i, k] * b[k, j], axis=k), name="matmul")
    return te.create_prim_func([a, b, c])


def invented_s(ast: CompactAst) -> float:
    """What the program takes on the invented machine: it moves 10 GB/s and runs loops alike."""
    work = leaf_work(ast.leaf_features)
    return float(np.sum(work.touched_bytes / np.sqrt(work.parallelism)) / 1e10 + 1e-7)


def measured_s(module: Any) -> float:
    """Likewise, of a scheduled module."""
    (ast,) = featurise_modules([module], sample_target("llvm"))
    assert isinstance(ast, CompactAst)
    return invented_s(ast)


@lru_cache(maxsize=1)
def asked_programs() -> tuple[AskedProgram, ...]:
    """Programs of 24 tasks, measured on the invented machine."""
    spec = load_registry()[DEVICE]
    target = sample_target("llvm")
    asked = []
    for number in range(TASKS):
        function = matmul(16 * (1 + number % 6), 16 * (1 + number // 6), 48)
        schedules = sample_schedules(function, "llvm", PROGRAMS, seed=number)
        asts = featurise_modules([schedule.mod for schedule in schedules], target)
        for place, ast in enumerate(asts):
            assert isinstance(ast, CompactAst)
            asked.append(
                AskedProgram(
                    program_id=f"{number}-{place}",
                    task=f"task {number}|llvm",
                    ast=ast,
                    device=spec,
                    measured_s=invented_s(ast),
                    operator="dense",
                )
            )
    return tuple(asked)


@lru_cache(maxsize=1)
def _trained() -> tuple[Samples, tuple[Samples, Samples], TransformerCostModel]:
    """Returns all programs, the two parts and the model that the test files of a process share."""
    import_tensor_intrinsics("llvm")  # before TVM does it, at its own pace
    samples = assemble_samples(asked_programs())
    is_validation = samples.task_id % 2 == 1
    train, validation = samples.take(~is_validation), samples.take(is_validation)
    model = TransformerCostModel(_OPTIONS)
    model.fit(train, validation, seed=0)
    return samples, (train, validation), model


def train_into(folder: Path) -> Path:
    """Writes a run folder with a small model of the invented machine; returns it."""
    samples, (train, validation), model = _trained()
    card = ModelCard(
        kind=model.kind,
        feature_schema=samples.programs.feature_schema,
        data_hash="invented",
        split={"seed": 0},
        devices=samples.devices,
        training_tasks=task_digests(train),
        versions={},
    )
    folder.mkdir(parents=True)
    save_trained(model, folder, card, train=train, validation=validation)
    return folder


@derived_object
class NoBuilder(ms.builder.PyBuilder):  # type: ignore[misc]
    """Builds nothing and remembers the modules."""

    def __init__(self, modules: list[Any]) -> None:
        super().__init__()
        self.modules = modules

    def build(self, build_inputs: list[Any]) -> list[Any]:
        results = []
        for build_input in build_inputs:
            self.modules.append(build_input.mod)
            # TVM removes the folder of the artifact after the measurement.
            folder = Path(tempfile.mkdtemp(prefix="cdmpp-test-"))
            results.append(ms.builder.BuilderResult(str(folder / str(len(self.modules) - 1)), None))
        return results


@derived_object
class _Done(ms.runner.PyRunnerFuture):  # type: ignore[misc]
    def __init__(self, seconds: float | None) -> None:
        super().__init__()
        self.seconds = seconds

    def done(self) -> bool:
        return True

    def result(self) -> Any:
        if self.seconds is None:
            return ms.runner.RunnerResult(None, "failed on purpose")
        return ms.runner.RunnerResult([self.seconds], None)


@derived_object
class InventedRunner(ms.runner.PyRunner):  # type: ignore[misc]
    """Measures on the invented machine; every `fail_every`-th program fails."""

    def __init__(self, modules: list[Any], fail_every: int = 0) -> None:
        super().__init__()
        self.modules = modules
        self.fail_every = fail_every
        self.measured_s: list[float] = []

    def run(self, runner_inputs: list[Any]) -> list[Any]:
        futures = []
        for runner_input in runner_inputs:
            number = int(Path(str(runner_input.artifact_path)).name)
            seconds: float | None = measured_s(self.modules[number])
            if self.fail_every and number % self.fail_every == 0:
                seconds = None
            else:
                self.measured_s.append(seconds)
            futures.append(_Done(seconds))
        return futures


@derived_object
class RunnerHere(ms.runner.PyRunner):  # type: ignore[misc]
    """Times what a real builder built, once, in this process."""

    def run(self, runner_inputs: list[Any]) -> list[Any]:
        futures = []
        for one in runner_inputs:
            shapes = [(info.dtype, list(info.shape)) for info in one.args_info]
            tensors = random_tensors(shapes, tvm.runtime.cpu(0))
            module = tvm.runtime.load_module(str(one.artifact_path))
            evaluator = module.time_evaluator("main", tvm.runtime.cpu(0), number=1)
            futures.append(_Done(float(evaluator(*tensors).mean)))
        return futures


def search(
    function: Any, work_dir: Path, cost_model: Any, *, trials: int = 16, **options: Any
) -> InventedRunner:
    """Runs `tune_tir` on the invented machine; returns the runner."""
    from tvm_helper.cost_model.tune import tune_tir

    modules: list[Any] = []
    runner = InventedRunner(modules, fail_every=options.pop("fail_every", 0))
    space = ms.space_generator.PostOrderApply(
        sch_rules="llvm", postprocs="llvm", mutator_probs="llvm"
    )
    tune_tir(
        function, sample_target("llvm"), work_dir, trials, cost_model=cost_model,
        num_trials_per_iter=8, num_tuning_cores=1, seed=1, space=space, builder=NoBuilder(modules),
        runner=runner,
        strategy=ms.search_strategy.EvolutionarySearch(population_size=32, genetic_num_iters=1),
        **options,
    )  # fmt: skip
    return runner
