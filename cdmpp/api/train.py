"""Training and fine-tuning in a run folder, with a report."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cdmpp.api.arguments import PATH, check_type, labels_of
from cdmpp.api.dataset import CACHE_DIR, Dataset
from cdmpp.api.model import Model, load
from cdmpp.errors import UsageError
from cdmpp.pretrained import PRETRAINED

if TYPE_CHECKING:
    from cdmpp.datasets.samples import Samples
    from cdmpp.datasets.sampling import SamplingMethod
    from cdmpp.models.loop.progress import RunProgress
    from cdmpp.models.nets.options import DeviceType
    from cdmpp.training.finetune.run import Budget, FinetuneRunOptions
    from cdmpp.training.options import SplitKind, TrainOptions
    from cdmpp.training.run import RunResult
    from cdmpp.training.unmeasured import Unmeasured


def train(
    dataset: Dataset | str | Path | None = None,
    *,
    device: str | Sequence[str] = (),
    model: str = "transformer",
    out: str | Path | None = None,
    split: SplitKind = "task",
    seed: int = 0,
    settings: Mapping[str, Any] | None = None,
    from_nothing: bool = False,
    cache_dir: str | Path = CACHE_DIR,
    jobs: int | None = None,
    on_progress: RunProgress | None = None,
) -> Model:
    """Trains a model and its baselines and evaluates them once on the test part, as `cdmpp train`
    does. The same call resumes an interrupted training.

    Args:
        dataset: measured programs, or the `place` of `Dataset.read`.
        device: labels to train on; empty = all of the dataset. For a device without measurements,
            the model is trained on all measured devices of its kind.
        model: kind of model: `transformer`, `ensemble`, `gbdt`, ...
        out: run folder; None = `runs/NAME`, named after the options.
        split: unit that is held out.
        seed: seed of the split and the training.
        settings: other options, nested as in the files of `configs/train`:
            `{"transformer": {"loop": {"epochs": 10}}}`.
        from_nothing: whether a training on few tasks never starts from the shipped model.
        cache_dir, jobs: see `Dataset.read`.
        on_progress: called with the current step and its progress.

    Returns:
        the model; its folder has `metrics.json` and `report.html`.

    Raises:
        UsageError: an unknown kind or setting, or the folder has another run.
        DataError: measurements are missing, or a part of the split is empty.
        DeviceError: an unknown device.
    """
    from cdmpp.config import from_dict, load_config
    from cdmpp.datasets.find import labels_at
    from cdmpp.training.options import TrainOptions, run_name

    _check_types(dataset, out, settings)
    check_type("from_nothing", from_nothing, bool, "True or False")
    check_type("cache_dir", cache_dir, PATH, "a folder")
    _check_settings(settings, model=model, split=split, seed=seed)
    given = dataset.place if isinstance(dataset, Dataset) else dataset
    labels = list(labels_of(device))
    if isinstance(dataset, Dataset) and not labels:
        labels = list(dataset.labels)
    labels = labels_at(None if given is None else Path(given), labels)
    options = load_config(
        TrainOptions,
        base=from_dict(TrainOptions, settings or {}),
        given={
            "dataset": str(given) if given else None, "devices": tuple(sorted(labels)) or None,
            "model": model, "split": split, "seed": seed,
        },
    )  # fmt: skip

    def read(options: TrainOptions) -> Samples:
        if isinstance(dataset, Dataset):
            is_same = set(dataset.labels) == set(options.devices)
            return (dataset if is_same else replace(dataset, labels=options.devices)).samples
        place = options.dataset or None
        return Dataset.read(place, options.devices, cache_dir=cache_dir, jobs=jobs).samples

    run_dir = Path(out) if out else Path("runs") / run_name(options)
    result, _ = train_in_folder(
        options, run_dir, read, cache_dir=Path(cache_dir), from_nothing=from_nothing,
        on_progress=on_progress,
        command=f"cdmpp train --config {run_dir / 'config.yaml'} --out {run_dir}",
    )  # fmt: skip
    if result is None:
        raise UsageError("cdmpp.train trains in one process; under torchrun use `cdmpp train`")
    return load(result.run_dir)


def finetune(
    model: Model | str | Path = PRETRAINED,
    device: str | Sequence[str] = (),
    *,
    dataset: Dataset | str | Path | None = None,
    network: str = "",
    budget: int = 10,
    sampler: SamplingMethod = "kmeans",
    measured_on: str = "",
    compare: bool = False,
    seed: int = 0,
    out: str | Path | None = None,
    settings: Mapping[str, Any] | None = None,
    cache_dir: str | Path = CACHE_DIR,
    jobs: int | None = None,
    on_progress: RunProgress | None = None,
) -> Model:
    """Adapts a trained model to a new device or network with a few measured tasks, as `cdmpp
    finetune` does, and evaluates it on the other tasks. The same call resumes.

    Args:
        model: the model to adapt: a model, a run folder, or `pretrained`.
        device: labels to adapt to.
        dataset: their measurements, or the `place` of `Dataset.read`; None = shipped and fetched
            records of the devices.
        network: only the tasks of this network.
        budget: tasks to train on; 0 = all: the model is then selected by cross-validation.
        sampler: selection of the tasks: `kmeans`, `random` or `k-center`; none of them needs
            measurements.
        measured_on: a device of the training data whose times of the same programs correct the
            predictions.
        compare: whether models trained only on the budget are evaluated too.
        seed: seed of the task selection and the training.
        out: run folder; None = `runs/NAME`, named after the options.
        settings: other options, nested as in the files of `configs/finetune`.
        cache_dir, jobs: see `Dataset.read`.
        on_progress: called with the current step and its progress.

    Returns:
        the adapted model; its folder has `metrics.json` and `report.html`.

    Raises:
        UsageError: no device or network is given, the budget is too large, or the folder has
            another run.
        DataError: the model is incomplete, or measurements are missing.
        DeviceError: an unknown device.
    """
    from cdmpp.config import from_dict, load_config
    from cdmpp.training.finetune.run import FinetuneRunOptions, run_name

    _check_types(dataset, out, settings)
    _check_settings(
        settings, network=network, budget=budget, sampler=sampler, seed=seed, compare=compare,
        measured_on=measured_on,
    )  # fmt: skip
    given = dataset.place if isinstance(dataset, Dataset) else dataset
    labels = list(labels_of(device))
    options = load_config(
        FinetuneRunOptions,
        base=from_dict(FinetuneRunOptions, settings or {}),
        given={
            "from_run": str(model.place if isinstance(model, Model) else model),
            "dataset": str(given) if given else None, "devices": tuple(sorted(labels)) or None,
            "network": network, "budget": budget, "sampler": sampler, "seed": seed,
            "compare": compare, "measured_on": measured_on,
        },
    )  # fmt: skip

    def read(names: Sequence[str]) -> Dataset:
        if isinstance(dataset, Dataset):
            return replace(dataset, labels=tuple(names))
        return Dataset.read(options.dataset or None, names, cache_dir=cache_dir, jobs=jobs)

    run_dir = Path(out) if out else Path("runs") / run_name(options)
    result, _ = finetune_in_folder(
        options, run_dir, read, on_progress=on_progress or (lambda what, progress: None),
        command=f"cdmpp finetune --config {run_dir / 'config.yaml'} --out {run_dir}",
    )  # fmt: skip
    return load(result.run_dir)


def _check_types(dataset: object, out: object, settings: object) -> None:
    check_type("dataset", dataset, Dataset | PATH | None, "a Dataset, a folder or file, or None")
    check_type("out", out, PATH | None, "a folder or None")
    check_type("settings", settings, Mapping | None, "a mapping of names to values")


def _check_settings(settings: Mapping[str, Any] | None, **arguments: Any) -> None:
    for name, value in arguments.items():
        own = (settings or {}).get(name, value)
        if own != value:
            raise UsageError(
                f"settings has {name} {own!r}, but the argument {name} is {value!r}; expected "
                f"{name}={own!r} beside settings"
            )


def train_in_folder(
    options: TrainOptions,
    run_dir: Path,
    read: Callable[[TrainOptions], Samples],
    *,
    command: str,
    cache_dir: Path = Path(CACHE_DIR),
    device_type: DeviceType = "cpu",
    from_nothing: bool = False,
    on_found: Callable[[Unmeasured], None] = lambda _: None,
    on_progress: RunProgress | None = None,
) -> tuple[RunResult | None, Unmeasured | None]:
    """Trains, evaluates and reports; used by `cdmpp train` and `cdmpp.train`.

    Args:
        read: returns the samples for the options; called after the options are checked.
        command: command in the report that repeats the run.
        cache_dir: folder with the fetched records.
        device_type: device that torch trains on.
        from_nothing: see `train`.
        on_found: called with the devices without measurements, before data are read.
        on_progress: called with the current step and its progress.

    Returns:
        the run, None in a secondary process of torchrun; and the devices without measurements, None
        if there are none.

    Raises:
        CdmppError: see `train`.
    """
    from cdmpp.models.loop.distributed import first_then_others, is_first, process_group
    from cdmpp.pretrained import find_pretrained
    from cdmpp.report.run_report import write_run_report
    from cdmpp.training.finetune.start import start_from
    from cdmpp.training.run import assist_run, check_run, train_run
    from cdmpp.training.unmeasured import check_alone, find_unmeasured, train_unmeasured

    found = None if options.dataset else find_unmeasured(options.devices, cache_dir)
    if found is not None:
        options = replace(options, devices=found.sources)
    check_run(options, run_dir)
    if found is not None:
        on_found(found)
    tell = on_progress or (lambda what, progress: None)
    with process_group(device_type):
        if found is not None:
            check_alone()
        samples = first_then_others(lambda: read(options))
        if not is_first():
            assist_run(options, samples, run_dir)
            return None, found
        if found is not None:
            result = train_unmeasured(options, found, samples, run_dir, on_progress=tell)
        else:
            start = None if from_nothing else start_from(find_pretrained(), options)
            result = train_run(options, samples, run_dir, on_progress=tell, choose_start=start)
    write_run_report(result, command=command)
    return result, found


def finetune_in_folder(
    options: FinetuneRunOptions,
    run_dir: Path,
    read: Callable[[Sequence[str]], Dataset],
    *,
    command: str,
    on_progress: RunProgress,
) -> tuple[RunResult, Budget]:
    """Adapts a model to a few measured tasks, evaluates and reports, as `cdmpp finetune` does.

    Args:
        read: returns the measurements of labels, empty = all; called after the options are checked.
        command: command in the report that repeats the run.
        on_progress: called with the current step and its progress.

    Returns:
        the run, and the training tasks.

    Raises:
        UsageError: no device or network is given, or the folder has another run.
        DataError: the model is incomplete, or measurements are missing.
    """
    from cdmpp.config import dump_text
    from cdmpp.datasets.extraction.machine_code import read_machine_code
    from cdmpp.files.run_folder import check_run_folder
    from cdmpp.report.run_report import write_run_report
    from cdmpp.training.finetune.run import finetune_run

    if not options.devices and not options.network:
        raise UsageError(
            "finetune needs a device or network to adapt to: give --device LABEL or --network NAME"
        )
    load(options.from_run).trained()
    check_run_folder(run_dir, dump_text(options))
    source = (options.measured_on,) if options.measured_on else ()
    dataset = read((*options.devices, *source))
    result, budget = finetune_run(
        options, dataset.samples, run_dir, code=read_machine_code(dataset.folder),
        on_progress=on_progress,
    )  # fmt: skip
    write_run_report(result, command=command)
    return result, budget
