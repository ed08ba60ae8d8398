"""From `--dataset` to samples: extracts a Tenset directory when that has not been done."""

from __future__ import annotations

import argparse
import hashlib
from pathlib import Path
from typing import TYPE_CHECKING

from cdmpp.cli.dataset.command import device_labels, extract_with_progress
from cdmpp.cli.shared.options import is_quiet
from cdmpp.timing.stats import timer

if TYPE_CHECKING:
    from cdmpp.datasets.samples import Samples


@timer("read data")
def samples_of(args: argparse.Namespace) -> Samples:
    """Returns the samples that --dataset and --device ask for.

    Raises:
        DataError: the dataset or a device is missing, or nothing in it is usable.
    """
    from cdmpp.datasets.cache import load_samples

    devices = device_labels(args.device)
    return load_samples(_extracted(args, devices), devices)


def extracted_folder(args: argparse.Namespace) -> Path:
    """Returns the extracted folder of --dataset, where it has at least the asked devices.

    Raises:
        DataError: the dataset or a device is missing, or nothing in it is usable.
    """
    return _extracted(args, device_labels(args.device))


def _extracted(args: argparse.Namespace, devices: list[str] | None) -> Path:
    """Returns an extracted folder that has the devices; extraction continues where it was
    stopped.
    """
    from cdmpp.datasets.autotvm.logs import is_autotvm_log
    from cdmpp.datasets.extraction.extracted import is_extracted_dir
    from cdmpp.datasets.tenset.folder import default_dataset_dir, find_device_files, find_devices

    dataset: Path = args.dataset or default_dataset_dir()
    if is_extracted_dir(dataset):
        return dataset
    if is_autotvm_log(dataset):
        logs: Path = args.cache / _cache_name(dataset, None)
        extract_with_progress(dataset, logs, None, jobs=args.jobs, is_quiet=is_quiet(args))
        return logs
    found = find_devices(dataset)
    for label in devices or []:
        find_device_files(dataset, label)
    whole: Path = args.cache / _cache_name(dataset, args.network_info)
    # A few devices of many get a folder of their own, unless all have been extracted before.
    is_part = devices is not None and set(devices) < set(found) and not is_extracted_dir(whole)
    if is_part and devices is not None:
        digest = hashlib.sha256(",".join(sorted(set(devices))).encode()).hexdigest()[:8]
        whole = whole.with_name(f"{whole.name}-{len(set(devices))}-devices-{digest}")
    extract_with_progress(
        dataset,
        whole,
        sorted(set(devices)) if is_part and devices is not None else None,
        jobs=args.jobs,
        network_info=args.network_info,
        is_quiet=is_quiet(args),
    )
    return whole


def _cache_name(dataset: Path, network_info: Path | None) -> str:
    from cdmpp.datasets.tenset.folder import default_dataset_dir
    from cdmpp.errors import DataError

    place = dataset.resolve()
    try:
        is_default = place == default_dataset_dir().resolve() and network_info is None
    except DataError:
        is_default = False
    if is_default:
        return place.name
    # Folders of the same name in different places must not overwrite each other.
    tasks = str(network_info.resolve()) if network_info else ""
    return f"{place.name}-{hashlib.sha256(f'{place}|{tasks}'.encode()).hexdigest()[:8]}"
