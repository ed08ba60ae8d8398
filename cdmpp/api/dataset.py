"""Datasets of measured programs, read by device label or folder."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from numbers import Integral
from pathlib import Path
from typing import TYPE_CHECKING

from cdmpp.api.arguments import PATH, check_type, labels_of

if TYPE_CHECKING:
    from cdmpp.datasets.extraction.extract import ExtractProgress
    from cdmpp.datasets.samples import Samples
    from cdmpp.datasets.splits import SplitKind

_log = logging.getLogger("cdmpp")

#: Default folder of extracted data, as of `--cache`.
CACHE_DIR = "cache"


@dataclass(frozen=True, repr=False)
class Dataset:
    """Measured programs: features, devices and seconds. Created by `Dataset.read`.

    Attributes:
        folder: the extracted dataset, two Parquet tables (`docs/reference/formats.md`).
        place: folder or file of the records; None = all sources of the devices.
        labels: the requested devices; empty = all.
    """

    folder: Path
    place: Path | None = None
    labels: tuple[str, ...] = ()

    @classmethod
    def read(
        cls,
        place: str | Path | None = None,
        device: str | Sequence[str] = (),
        *,
        network_info: str | Path | None = None,
        cache_dir: str | Path = CACHE_DIR,
        jobs: int | None = None,
        prepare: Callable[[], object] | None = None,
        on_progress: Callable[[ExtractProgress], None] | None = None,
    ) -> Dataset:
        """Reads measured programs. Earlier extractions are reused.

        Args:
            place: folder in Tenset's layout, an extracted dataset, a packed campaign, AutoTVM logs
                or a MetaSchedule database; None = shipped and fetched records of the devices, or
                the shipped default dataset.
            device: one or more labels to keep; empty = all.
            network_info: folder with the tasks; None = inside `place`.
            cache_dir: cache folder of extracted data.
            jobs: number of extraction processes; None = one per CPU.
            prepare: called before logs need the old TVM; None = an error if that is missing.
            on_progress: called with the progress of the extraction.

        Raises:
            DataError: the records or a device are missing, or no record is usable.
            DeviceError: an unknown device.
            UsageError: AutoTVM logs need the side environment with the old TVM, and it is missing;
                or an argument has a wrong type.
        """
        from cdmpp.api.featurisers import tvm_featurisers
        from cdmpp.datasets.extraction.extracted import PACKED_CAMPAIGN, is_extracted_dir
        from cdmpp.datasets.find import labels_at
        from cdmpp.datasets.sources import extracted_folder
        from cdmpp.errors import DataError
        from cdmpp.processes.campaign import CAMPAIGN_FILE

        check_type("place", place, PATH | None, "a folder or file, or None")
        check_type("network_info", network_info, PATH | None, "a folder or None")
        check_type("cache_dir", cache_dir, PATH, "a folder")
        check_type("jobs", jobs, Integral | None, "a whole number or None")
        labels = labels_of(device)
        place = source = Path(place) if place else None
        if place and (place / PACKED_CAMPAIGN).is_file() and not is_extracted_dir(place):
            from tvm_helper.measure.tables import unpacked

            source = unpacked(place, Path(cache_dir), on_progress=on_progress or (lambda _: None))
        elif place and (place / CAMPAIGN_FILE).is_file() and not is_extracted_dir(place):
            raise DataError(
                f"{place} is a campaign without tables, which cdmpp measure writes at its end. "
                f"Run: cdmpp measure --tables-only --out {place}"
            )
        labels = tuple(labels_at(source, labels))
        folder = extracted_folder(
            source, list(labels) or None, cache_dir=Path(cache_dir),
            network_info=None if network_info is None else Path(network_info), jobs=jobs,
            featurisers=tvm_featurisers(prepare), on_progress=on_progress or (lambda _: None),
        )  # fmt: skip
        return cls(folder, place, labels)

    def __repr__(self) -> str:
        labels = f" of {', '.join(self.labels)}" if self.labels else ""
        return f"<Dataset {str(self.place or self.folder)!r}{labels}>"

    @cached_property
    def samples(self) -> Samples:
        """All samples: N programs on devices with their seconds, as arrays.

        Warns if lines or files of the records could not be read.

        Raises:
            DataError: a device is missing, or no sample is usable.
        """
        from cdmpp.datasets.cache import load_samples
        from cdmpp.datasets.extraction.extracted import read_manifest

        samples = load_samples(self.folder, list(self.labels) or None, records_dir=self.place)
        skipped = sum(read_manifest(self.folder).get("read", {}).get("skipped", {}).values())
        if skipped:
            place = self.place or self.folder
            _log.warning(
                "lines or files of %s that could not be read and are left out: %s; list them: "
                "cdmpp dataset stats %s", place, f"{skipped:,}", place,
            )  # fmt: skip
        return samples

    @property
    def devices(self) -> tuple[str, ...]:
        """Labels of the devices, in the order of `samples.devices`."""
        return tuple(spec.name for spec in self.samples.devices)

    def __len__(self) -> int:
        return len(self.samples)

    def split(
        self,
        kind: SplitKind = "task",
        *,
        seed: int = 0,
        fractions: tuple[float, float, float] = (0.7, 0.1, 0.2),
    ) -> tuple[Samples, Samples, Samples]:
        """Returns the train, validation and test parts.

        Args:
            kind: the unit that is held out: tasks (`task`), networks (`network`), or single
                programs (`record`), which leaks.
            seed: seed of the split.
            fractions: shares of the three parts.

        Raises:
            UsageError: an unknown kind, a seed that is not an integer, or impossible fractions.
            DataError: a part is empty.
        """
        from cdmpp.datasets.splits import split

        check_type("seed", seed, Integral, "a whole number")
        parts = split(self.samples, kind, seed=seed, fractions=fractions)
        train, validation, test = (
            self.samples.take(part) for part in (parts.train, parts.validation, parts.test)
        )
        return train, validation, test
