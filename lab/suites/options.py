"""Options of a suite, read from YAML: datasets, splits, models and limits of a leaderboard."""

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

#: Prefix of methods that adapt the pre-trained model to tasks chosen by a sampler.
FINETUNE = "finetune-"
#: Suffixes of methods that train a kind on the budget only, or on the sources only.
BUDGET_SUFFIX = "-budget"
ZERO_SHOT_SUFFIX = "-zero-shot"
_METHODS = ("zero-shot", "scratch", "one-factor")


@dataclass(frozen=True)
class SuiteModel:
    """A line of a cross-model leaderboard.

    Attributes:
        name: of the line.
        kind: registered kind; empty for the name.
        settings: overrides such as `gbdt.trees=100`, on top of the kind's preset.
        datasets: names of the datasets that it runs on; empty for all.
        is_peer: whether the verdict compares the subject with it; false for a variant of our model.
    """

    name: str
    kind: str = ""
    settings: tuple[str, ...] = ()
    datasets: tuple[str, ...] = ()
    is_peer: bool = True


#: The transformer without its encoder, to show the benefit of attention between leaves.
ZERO_LAYERS = SuiteModel(
    "transformer-0-layers", "transformer", ("transformer.network.layers=0",), is_peer=False
)


@dataclass(frozen=True)
class SuiteFamily:
    """Devices that are held out one at a time.

    Attributes:
        name: of the family.
        targets: held-out devices.
        sources: training devices, without the target itself; empty for the targets.
    """

    name: str
    targets: tuple[str, ...]
    sources: tuple[str, ...] = ()

    def sources_of(self, target: str) -> tuple[str, ...]:
        """Returns the training devices when `target` is held out."""
        return tuple(label for label in self.sources or self.targets if label != target)


@dataclass(frozen=True)
class SuiteDataset:
    """A dataset of a suite.

    Attributes:
        name: as in `--data NAME=DIR`, which gives its extracted folder.
        devices: cross-model: labels; empty for all.
        splits: cross-model only.
        test_networks: networks held out by the split by network; empty to draw them by the seed.
        families: cross-device only: held-out devices.
    """

    name: str
    devices: tuple[str, ...] = ()
    splits: tuple[Literal["task", "network"], ...] = ("task",)
    test_networks: tuple[str, ...] = ()
    families: tuple[SuiteFamily, ...] = ()


@dataclass(frozen=True)
class SuiteGoals:
    """Goals of the verdict.

    Attributes:
        peer_mape_ratio: our MAPE over the best baseline's.
        scratch_mape_ratio: MAPE fine-tuned over trained from scratch on the same tasks.
        factor_mape_ratio: MAPE fine-tuned over single-factor scaling.
    """

    peer_mape_ratio: float = 0.75
    scratch_mape_ratio: float = 0.6
    factor_mape_ratio: float = 0.75


@dataclass(frozen=True)
class SuiteOptions:
    """A leaderboard.

    Attributes:
        name: of the suite and of its result files.
        protocol: `cross-model` (split by task or network) or `cross-device` (a device is held out).
        subject: the line that is compared with baselines (cross-model), and the kind that is
            pre-trained and fine-tuned (cross-device).
        datasets: datasets of the suite.
        seeds: each draws its own split and its own training.
        models: cross-model: the lines.
        methods: cross-device: `zero-shot`, `finetune-SAMPLER`, `scratch`, `one-factor`,
            `KIND-budget` (trained on the budget only) and `KIND-zero-shot` (trained on the
            sources).
        budgets: cross-device: numbers of tasks of the target; those above half of its tasks are
            skipped.
        sampler_budget: cross-device: the budget (or the largest possible one below it) of the
            headline, at which all samplers are evaluated.
        fractions: cross-model: training, validation and test fraction.
        programs_per_device: maximum samples per device (see `cap_programs`); 0 for all.
        cpu_s_per_cell: maximum CPU seconds of a training, if the kind of model supports a limit; 0
            for no limit.
        cpu_s_per_finetune: the same for trainings on a budget.
        few_workloads: devices with fewer test workloads are excluded from the mean over devices.
        finetune: options of the fine-tuning.
        settings: overrides of training options for every cell, e.g. `gbdt.threads=1`.
        budget_settings: cross-device: further overrides for trainings on a budget, whose data are
            too few for the usual number of epochs.
        goals: goals of the verdict.
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
    """Returns a suite by name (`configs/suites/NAME.yaml`) or by the path of a YAML file. Missing
    values come from the suite named by `like`, or from the defaults.

    Raises:
        UsageError: there is no such suite, or it is malformed.
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
    """Returns the suite named by `like` in the file at `path`; None if there is none."""
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
    """Returns the suite of one dataset, a model and its baselines, without limits.

    Args:
        dataset: name of the dataset in the tables.
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
    """Returns the training options of a kind of model in a suite.

    Later sources win: defaults, `configs/models/KIND.yaml` if it exists, the suite's settings,
    those of the line, `config`, `overrides`, and `cpu_s` as the loop's limit if the kind has a
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
    """Returns a model's options with a CPU limit on its loop. An ensemble divides it among its
    parts; its trees, which support no limit, get the remainder.
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
    """Returns the options of a kind of model; None for kinds without options."""
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
