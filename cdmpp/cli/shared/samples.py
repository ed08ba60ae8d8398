"""Reads the samples of `--dataset` and `--device`, with extraction progress on stderr."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from cdmpp.api.dataset import Dataset
from cdmpp.cli.shared.options import labels_of
from cdmpp.cli.shared.progress import progress
from cdmpp.datasets.extraction.extract import ExtractProgress
from cdmpp.datasets.find import labels_at
from cdmpp.text import counted
from cdmpp.timing.stats import timer
from tvm_helper.legacy.setup import ready_environment


def asked_labels(dataset: Path | None, devices: Iterable[str] | None) -> list[str]:
    """Returns the labels of `--device` as the dataset (without one, the registry) names them."""
    return labels_at(dataset, labels_of(devices))


def given_data(dataset: Path | None, devices: Iterable[str] | None) -> dict[str, Any]:
    """Returns `--dataset` and `--device` as fields of options; None = not given."""
    labels = tuple(sorted(asked_labels(dataset, devices)))
    return {"dataset": str(dataset) if dataset else None, "devices": labels or None}


@timer("read data")
def dataset_of(
    dataset: Path | str | None,
    devices: Sequence[str] = (),
    *,
    cache_dir: Path,
    network_info: Path | None = None,
    jobs: int | None = None,
    may_install: bool = True,
    is_quiet: bool,
) -> Dataset:
    """Returns the result of `Dataset.read`, and shows its progress.

    Args:
        dataset: empty or None = a source with the devices, or the shipped default dataset.
        devices: labels; empty = all.
        may_install: whether the side environment that AutoTVM logs need may be built.

    Raises:
        DataError: the dataset or a device is missing, or no record is usable.
        UsageError: the logs need the side environment, and it cannot or may not be built.
    """
    with extraction_progress(is_quiet=is_quiet) as show:
        return Dataset.read(
            dataset, devices, network_info=network_info, cache_dir=cache_dir, jobs=jobs,
            prepare=prepared(may_install=may_install), on_progress=show,
        )  # fmt: skip


def prepared(*, may_install: bool) -> Callable[[], object]:
    """Returns a function that builds the side environment with the old TVM if it is missing.

    It prints its messages on stderr.
    """
    return lambda: ready_environment(
        may_install=may_install, say=lambda text: print(text, file=sys.stderr, flush=True)
    )


@contextmanager
def extraction_progress(*, is_quiet: bool) -> Iterator[Callable[[ExtractProgress], None]]:
    """Yields a callback that shows the progress of an extraction in percent."""
    with progress(is_quiet=is_quiet) as show:

        def show_extraction(now: ExtractProgress) -> None:
            percent = 100 * now.done // max(1, now.total)
            note = f"{counted(now.programs, 'program')}, shard {now.shards} of {now.shards_total}"
            show("percent extracted", percent, 100, note)

        yield show_extraction
