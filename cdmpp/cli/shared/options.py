"""Options that several commands share."""

from __future__ import annotations

import argparse
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

from cdmpp.config import load_config

Options = TypeVar("Options")


def add_output_options(parser: argparse.ArgumentParser) -> None:
    """Adds --json, -v and -q."""
    parser.add_argument("--json", action="store_true", help="print one JSON value and nothing else")
    # SUPPRESS keeps what the parser above this one has already set.
    suppressed: dict[str, Any] = {"default": argparse.SUPPRESS}
    parser.add_argument("-v", "--verbose", action="count", help="say more", **suppressed)
    parser.add_argument("-q", "--quiet", action="store_true", help="no progress", **suppressed)


def add_data_options(parser: argparse.ArgumentParser, *, is_dataset_required: bool = False) -> None:
    """Adds --dataset, --network-info, --device, --cache and --jobs."""
    default = "" if is_dataset_required else " (default: the shipped data/tenset-cpu)"
    parser.add_argument(
        "--dataset",
        type=Path,
        metavar="DIR",
        required=is_dataset_required,
        help=f"folder in Tenset's layout, or an extracted one{default}",
    )
    parser.add_argument(
        "--network-info",
        type=Path,
        metavar="DIR",
        help="folder of the tasks (default: network_info in the dataset)",
    )
    parser.add_argument(
        "--device",
        action="append",
        metavar="LABEL[,LABEL]",
        help="devices to use (default: all of the dataset); may be repeated",
    )
    parser.add_argument(
        "--cache",
        type=Path,
        metavar="DIR",
        default=Path("cache"),
        help="where extracted data are kept (default: ./cache)",
    )
    parser.add_argument(
        "--jobs", type=int, metavar="N", help="processes that extract (default: one per CPU)"
    )


def add_training_options(parser: argparse.ArgumentParser) -> None:
    """Adds --config and --set of what trains."""
    add_config_options(
        parser,
        config="options, e.g. configs/train/default.yaml",
        setting="transformer.loop.epochs=10",
    )


def add_config_options(parser: argparse.ArgumentParser, *, config: str, setting: str) -> None:
    """Adds --config and --set.

    Args:
        config: what the file is, for the help.
        setting: an example.
    """
    parser.add_argument("--config", type=Path, metavar="YAML", help=config)
    parser.add_argument(
        "--set",
        action="append",
        default=[],
        metavar="NAME=VALUE",
        help=f"one setting, e.g. {setting}; may be repeated, wins over --config",
    )


def add_target_options(parser: argparse._ActionsContainer) -> None:
    """Adds --device, --target, --threads and --devices: what programs run on."""
    parser.add_argument("--device", metavar="LABEL", help="label of the device, see `device list`")
    parser.add_argument(
        "--target", metavar="TEXT", help="TVM's target, JSON or tag (default: follows from LABEL)"
    )
    parser.add_argument(
        "--threads", type=int, metavar="N", help="threads on a CPU (default: those of LABEL)"
    )
    add_devices_option(parser)


def add_devices_option(parser: argparse._ActionsContainer) -> None:
    """Adds --devices."""
    parser.add_argument(
        "--devices",
        type=Path,
        action="append",
        default=[],
        metavar="DIR",
        help="folder with device files of your own; may be repeated",
    )


def add_profile_option(parser: argparse.ArgumentParser) -> None:
    """Adds --profile, which `cdmpp.cli.main` carries out."""
    parser.add_argument(
        "--profile", action="store_true", help="print where the time went, as a tree, on stderr"
    )


def labels_of(values: Iterable[str] | None) -> list[str]:
    """Returns the different labels of a repeated, comma-separated `--device`."""
    labels = (label.strip() for value in values or () for label in value.split(","))
    return list(dict.fromkeys(label for label in labels if label))


def loaded_options(
    kind: type[Options], config: Path | None, settings: Sequence[str], own: Mapping[str, Any]
) -> Options:
    """Returns options of a dataclass: defaults, then --config, then --set, then the command's own.

    Args:
        own: fields; None = not given.

    Raises:
        UsageError: an unknown setting or a value of the wrong type.
    """
    options = load_config(kind, config, overrides=settings)
    given = {name: value for name, value in own.items() if value is not None}
    return replace(options, **given)  # type: ignore[type-var]


def given_options(args: argparse.Namespace, names: Iterable[str]) -> dict[str, Any]:
    """Returns those of the named options that were given; a command need not have all of them."""
    found = {name: getattr(args, name, None) for name in names}
    return {name: value for name, value in found.items() if value is not None}


def is_quiet(args: argparse.Namespace) -> bool:
    """Whether progress is to be left out."""
    return bool(args.json or getattr(args, "quiet", False))
