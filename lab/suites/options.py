"""What a suite is: data sets, splits, models and limits of a leaderboard, read from YAML."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal, get_args

from cdmpp.config import from_dict, load_config, read_yaml
from cdmpp.datasets.sampling import SamplingMethod
from cdmpp.errors import UsageError
from cdmpp.files.places import shipped_places
from cdmpp.models.options import EnsembleOptions
from cdmpp.models.registry import MODEL_CLASSES, judged_baselines
from cdmpp.text import nearest
from cdmpp.training.options import TrainOptions

Protocol = Literal["cross-model", "cross-device"]

#: Beginning of a method that adapts the pre-trained model to tasks that a sampler chose.
FINETUNE = "finetune-"
#: Ends of methods that train a kind on the budget alone, or on the sources alone.
BUDGET_SUFFIX = "-budget"
ZERO_SHOT_SUFFIX = "-zero-shot"
_METHODS = ("zero-shot", "scratch", "one-factor")


@dataclass(frozen=True)
class SuiteModel:
    """A line of a cross-model leaderboard.

    Attributes:
        name: of the line.
        kind: registered kind; empty = the name.
        settings: overrides such as `gbdt.trees=100`, on top of the preset of the kind.
        seeds: empty = the suite's.
        datasets: names of the data sets it runs on; empty = all.
        cpu_factor: multiple of the suite's CPU limit that this line may use.
        is_peer: whether the verdict compares the subject with it; false for a variant of ours.
    """

    name: str
    kind: str = ""
    settings: tuple[str, ...] = ()
    seeds: tuple[int, ...] = ()
    datasets: tuple[str, ...] = ()
    cpu_factor: float = 1.0
    is_peer: bool = True


#: The transformer without its encoder: what attention between leaves is worth.
ZERO_LAYERS = SuiteModel(
    "transformer-0-layers", "transformer", ("transformer.network.layers=0",), is_peer=False
)


@dataclass(frozen=True)
class SuiteFamily:
    """Devices that are left out one at a time.

    Attributes:
        name: of the family.
        targets: devices that are left out.
        sources: devices that are trained on, the target itself aside; empty = the targets.
    """

    name: str
    targets: tuple[str, ...]
    sources: tuple[str, ...] = ()

    def sources_of(self, target: str) -> tuple[str, ...]:
        """Returns the devices trained on when `target` is left out."""
        return tuple(label for label in self.sources or self.targets if label != target)


@dataclass(frozen=True)
class SuiteDataset:
    """A data set of a suite.

    Attributes:
        name: by which `--data NAME=DIR` gives its extracted folder.
        devices: labels (cross-model); empty = all.
        splits: cross-model only.
        test_networks: networks held out by the split by network (empty = drawn by the seed).
        families: cross-device only: devices that are left out.
    """

    name: str
    devices: tuple[str, ...] = ()
    splits: tuple[Literal["task", "network"], ...] = ("task",)
    test_networks: tuple[str, ...] = ()
    families: tuple[SuiteFamily, ...] = ()


@dataclass(frozen=True)
class SuiteGoals:
    """What the verdict compares with.

    Attributes:
        peer_mape_ratio: our MAPE over the best peer's.
        scratch_mape_ratio: fine-tuned over trained from scratch on the same tasks.
        factor_mape_ratio: fine-tuned over one-factor scaling.
    """

    peer_mape_ratio: float = 0.75
    scratch_mape_ratio: float = 0.6
    factor_mape_ratio: float = 0.75


@dataclass(frozen=True)
class SuiteOptions:
    """A leaderboard.

    Attributes:
        name: of the suite and of its result files.
        protocol: `cross-model` (split by task or network) or `cross-device` (a device
            left out).
        subject: the line that is compared with its peers (cross-model) and the kind that is
            pre-trained and fine-tuned (cross-device).
        datasets: what it runs on.
        seeds: each draws its own split and its own training.
        models: cross-model: the lines.
        methods: cross-device: `zero-shot`, `finetune-SAMPLER`, `scratch`, `one-factor`,
            `KIND-budget` (trained on the budget alone) and `KIND-zero-shot` (trained on the
            sources).
        budgets: cross-device: numbers of tasks of the target; those above half of its tasks are
            left out.
        sampler_budget: cross-device: the budget (or the largest possible below it) at which
            samplers other than the first one are compared and which the headline shows.
        draws: cross-device: seeds of the fine-tune cells at that budget.
        fractions: cross-model: shares of training, validation and test.
        programs_per_device: most samples of a device that are used (see `cap_programs`); 0 = all.
        cpu_s_per_cell: most CPU seconds of a training, where the kind of model can be limited; 0 =
            no limit.
        cpu_s_per_finetune: the same for trainings on a budget.
        few_workloads: devices with fewer tested workloads do not enter the mean over devices.
        finetune: options of the fine-tuning.
        settings: overrides of training options for every cell, e.g. `gbdt.threads=1`.
        budget_settings: cross-device: further overrides for trainings on a budget, which are so
            small that the usual number of epochs would starve them.
        goals: what the verdict compares with.
    """

    name: str
    protocol: Protocol
    datasets: tuple[SuiteDataset, ...]
    subject: str = "transformer"
    seeds: tuple[int, ...] = (0, 1, 2)
    models: tuple[SuiteModel, ...] = ()
    methods: tuple[str, ...] = ()
    budgets: tuple[int, ...] = (0, 1, 3, 10, 30)
    sampler_budget: int = 10
    draws: tuple[int, ...] = (0, 1, 2, 3, 4)
    fractions: tuple[float, float, float] = (0.7, 0.1, 0.2)
    programs_per_device: int = 20_000
    cpu_s_per_cell: float = 240.0
    cpu_s_per_finetune: float = 60.0
    few_workloads: int = 5
    finetune: dict[str, Any] = field(default_factory=dict)
    settings: tuple[str, ...] = ()
    budget_settings: tuple[str, ...] = ()
    goals: SuiteGoals = field(default_factory=SuiteGoals)


def configs_dir() -> Path:
    """Returns the folder of the shipped configurations."""
    places = shipped_places("configs")
    return next((place for place in places if place.is_dir()), places[-1])


def load_suite(name: str, *, seeds: Sequence[int] | None = None) -> SuiteOptions:
    """Returns a suite by name (`configs/suites/NAME.yaml`) or by the path of a YAML file. What a
    file does not say is that of the suite it names as `like`, or the default.

    Raises:
        UsageError: there is no such suite, or it is not well-formed.
    """
    folder = configs_dir() / "suites"
    path = Path(name) if name.endswith((".yaml", ".yml")) else folder / f"{name}.yaml"
    if not path.is_file():
        known = sorted(p.stem for p in folder.glob("*.yaml"))
        raise UsageError(
            f"no suite {name!r} at {path}{nearest(name, known)}; suites found: "
            f"{', '.join(known) or 'none'}; give one of them or the path of a YAML file"
        )
    values = read_yaml(path)
    suite = from_dict(SuiteOptions, values, base=_base(values.pop("like", None), path, folder))
    if seeds is not None:
        suite = replace(suite, seeds=tuple(seeds))
    _check(suite, path)
    return suite


def _base(like: object, path: Path, folder: Path) -> SuiteOptions | None:
    """Returns the suite that the file at `path` is like; None = no other."""
    if like is None:
        return None
    other = folder / f"{like}.yaml"
    if not other.is_file() or "like" in read_yaml(other):
        raise UsageError(f"{path}: like is {like!r}, expected a suite that is like no other")
    return load_config(SuiteOptions, other)


def one_dataset_suite(
    name: Literal["by-task", "by-network"],
    dataset: str,
    options: TrainOptions,
    seeds: Sequence[int],
) -> SuiteOptions:
    """Returns the suite of one data set, a model and its baselines, without limits.

    Args:
        dataset: name of the data set in the tables.
        options: model, baselines, devices, fractions and held-out networks.
    """
    kinds = dict.fromkeys([options.model, *judged_baselines(options.baselines)])
    lines = [SuiteModel(kind) for kind in kinds]
    if options.model == "transformer":
        lines.insert(1, ZERO_LAYERS)
    entry = SuiteDataset(
        dataset,
        devices=options.devices,
        splits=("task",) if name == "by-task" else ("network",),
        test_networks=options.test_networks,
    )
    return SuiteOptions(
        name=name,
        protocol="cross-model",
        datasets=(entry,),
        subject=options.model,
        seeds=tuple(seeds),
        models=tuple(lines),
        fractions=options.fractions,
        programs_per_device=0,
        cpu_s_per_cell=0.0,
    )


def cell_options(
    suite: SuiteOptions,
    kind: str,
    *,
    settings: Sequence[str] = (),
    config: Path | None = None,
    overrides: Sequence[str] = (),
    cpu_s: float = 0.0,
) -> TrainOptions:
    """Returns the options with which a kind of model is trained in a suite.

    Later ones win: defaults, `configs/models/KIND.yaml` where there is one, the suite's settings,
    those of the line, `config`, `overrides`, and `cpu_s` as the loop's limit where the kind has a
    loop.

    Raises:
        UsageError: an unknown or ill-typed option.
    """
    preset = configs_dir() / "models" / f"{kind}.yaml"
    options = load_config(TrainOptions, preset if preset.is_file() else None)
    given = [*suite.settings, *settings]
    options = load_config(TrainOptions, overrides=given, base=options)
    options = load_config(TrainOptions, config, overrides=overrides, base=options)
    own = own_options(kind, options)
    if own is not None and cpu_s > 0:
        options = replace(options, **{_field(kind): _limited(own, cpu_s)})
    return options


def _limited(own: Any, cpu_s: float) -> Any:
    """Returns a model's options with that limit on its loop; an ensemble's is shared among its
    parts, and its trees, which know no limit, have the rest.
    """
    if isinstance(own, EnsembleOptions):
        return replace(
            own,
            transformer=_limited(own.transformer, 0.5 * cpu_s),
            perceptron=_limited(own.perceptron, 0.25 * cpu_s),
        )
    if hasattr(own, "loop"):
        return replace(own, loop=replace(own.loop, cpu_seconds=cpu_s))
    return own


def own_options(kind: str, options: TrainOptions) -> Any:
    """Returns the part of the options that a kind of model reads; None for kinds without any."""
    names = {entry.name for entry in dataclasses.fields(options)}
    return getattr(options, _field(kind)) if _field(kind) in names else None


def _field(kind: str) -> str:
    return kind.replace("-", "_")


def _check(suite: SuiteOptions, path: Path) -> None:
    problems = []
    if not suite.datasets:
        problems.append("has no datasets")
    if not suite.seeds or len(set(suite.seeds)) != len(suite.seeds) or min(suite.seeds) < 0:
        problems.append(f"seeds are {list(suite.seeds)}, expected different whole numbers >= 0")
    if suite.protocol == "cross-model":
        names = [model.name for model in suite.models]
        if suite.subject not in names or len(set(names)) != len(names):
            problems.append(f"models must have different names and include {suite.subject!r}")
    else:
        if not suite.methods or 0 not in suite.budgets or min(suite.budgets) < 0:
            problems.append("cross-device needs methods, and budgets >= 0 that include 0")
        unknown = [method for method in suite.methods if not _is_method(method)]
        if unknown:
            problems.append(
                f"unknown method {unknown[0]!r}, expected {', '.join(_METHODS)}, "
                f"{FINETUNE}{{{','.join(get_args(SamplingMethod))}}}, KIND{BUDGET_SUFFIX} or "
                f"KIND{ZERO_SHOT_SUFFIX} with KIND one of {', '.join(sorted(MODEL_CLASSES))}"
            )
    if problems:
        raise UsageError(f"suite {path}: {'; '.join(problems)}")


def _is_method(method: str) -> bool:
    if method in _METHODS:
        return True
    if method.startswith(FINETUNE):
        return method.removeprefix(FINETUNE) in get_args(SamplingMethod)
    suffixes = (BUDGET_SUFFIX, ZERO_SHOT_SUFFIX)
    return any(
        method.endswith(suffix) and method.removesuffix(suffix) in MODEL_CLASSES
        for suffix in suffixes
    )
