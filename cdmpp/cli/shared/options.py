"""Options that several commands share."""

from __future__ import annotations

import argparse
import shlex
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from cdmpp.cli.shared.option_table import add_table
from cdmpp.devices.registry import find_device
from cdmpp.errors import DeviceError, UsageError


def add_output_options(parser: argparse.ArgumentParser) -> None:
    """Adds --json, -v and -q."""
    add_table(parser, """
        --json  print one JSON value and nothing else
    """)  # fmt: skip
    # SUPPRESS keeps a value that the parent parser has already set.
    suppressed: dict[str, Any] = {"default": argparse.SUPPRESS}
    parser.add_argument("-v", "--verbose", action="count", help="print more messages", **suppressed)
    parser.add_argument(
        "-q", "--quiet", action="store_true", help="print no progress", **suppressed
    )


def add_data_options(parser: argparse.ArgumentParser, *, has_device: bool = True) -> None:
    """Adds --dataset, --network-info, --device (optional), --cache, --jobs and --no-install."""
    add_table(parser, """
        --dataset DIR: Path       folder in Tenset's layout, or an extracted one (default: the
            shipped or fetched records of the devices; data/tenset-cpu if no device is given)
        --network-info DIR: Path  folder of the tasks (default: network_info in the dataset)
    """)  # fmt: skip
    if has_device:
        add_table(parser, """
            --device LABEL[,LABEL]...  devices to use (default: all of the dataset); may be
                repeated
        """)  # fmt: skip
    add_table(parser, """
        --cache DIR: Path = cache  cache folder of extracted data (default: ./cache)
        --jobs N: int              processes that extract (default: one per CPU)
    """)  # fmt: skip
    add_no_install_option(parser)


def add_model_option(parser: argparse.ArgumentParser) -> None:
    """Adds --model: a run folder, by default the shipped one."""
    add_table(parser, """
        --model RUN: Path = pretrained  run folder (default: pretrained, the shipped model)
    """)  # fmt: skip


def add_device_spec_option(parser: argparse._ActionsContainer, *, of: str = "") -> None:
    """Adds --device-spec, a list of paths; None if it is not given.

    Args:
        of: note for the help.
    """
    parser.add_argument(
        "--device-spec", action="append", type=Path, metavar="YAML",
        help="unseen hardware, described as in cdmpp/devices"
        + (f" ({of})" if of else ""),
    )  # fmt: skip


def add_no_install_option(parser: argparse.ArgumentParser) -> None:
    """Adds --no-install."""
    add_table(parser, """
        --no-install  do not build the side environment that AutoTVM logs and databases of older
            TVMs need
    """)  # fmt: skip


def add_training_options(parser: argparse.ArgumentParser) -> None:
    """Adds --config and --set of training commands."""
    add_config_options(
        parser,
        config="file of options, e.g. configs/train/default.yaml",
        setting="transformer.loop.epochs=10",
    )


def add_config_options(parser: argparse.ArgumentParser, *, config: str, setting: str) -> None:
    """Adds --config and --set.

    Args:
        config: description of the file, for the help.
        setting: example of a setting, for the help.
    """
    parser.add_argument("--config", type=Path, metavar="YAML", help=config)
    parser.add_argument(
        "--set",
        action="append",
        default=[],
        metavar="NAME=VALUE",
        help=f"one setting, e.g. {setting}; may be repeated, overrides --config",
    )


def add_target_options(parser: argparse._ActionsContainer) -> None:
    """Adds --device, --target, --threads, --devices and --force."""
    add_table(parser, """
        --device LABEL    label of the device, see `device list`
        --target TEXT     TVM target, JSON or tag (default: from LABEL)
        --threads N: int  threads on a CPU (default: those of LABEL)
    """)  # fmt: skip
    add_devices_option(parser)
    add_force_option(parser)


def add_force_option(parser: argparse._ActionsContainer) -> None:
    """Adds --force, which allows measuring under a label that does not describe this machine."""
    add_table(parser, """
        --force = None  measure even if the label does not describe this machine
    """)  # fmt: skip


def machine_code_of(wanted: bool, unwanted: bool) -> bool | None:
    """Returns whether `--machine-code` or `--no-machine-code` was given; None = neither.

    Raises:
        UsageError: both were given.
    """
    if wanted and unwanted:
        raise UsageError(
            "--machine-code and --no-machine-code exclude each other: got both, expected one of "
            "them; leave one out"
        )
    return True if wanted else False if unwanted else None


def check_goes_with(what: str, is_there: object, got: object = "", **options: object) -> None:
    """Checks that no option is given without the option or mode that it needs.

    Args:
        what: the needed option or mode, for the error text.
        is_there: whether the command has it.
        got: what the command has instead, for the error text.
        options: name -> value; false = not given.

    Raises:
        UsageError: an option is given and `is_there` is false.
    """
    given = [name.replace("_", "-") for name, value in options.items() if value]
    if given and not is_there:
        instead = f", got {got}" if got else ""
        raise UsageError(f"--{given[0]} can only be used with {what}{instead}; leave it out")


def given_options(
    add_options: Callable[[argparse.ArgumentParser], None], values: Mapping[str, object]
) -> list[str]:
    """Returns the attributes of a command's options whose value is not the default.

    Args:
        add_options: adds the command's options to a parser.
        values: attribute -> value; may have other attributes.
    """
    parser = argparse.ArgumentParser()
    add_options(parser)
    defaults = vars(parser.parse_args([]))
    return [name for name, default in defaults.items() if values[name] != default]


def add_devices_option(parser: argparse._ActionsContainer) -> None:
    """Adds --devices."""
    add_table(parser, """
        --devices DIR...: Path = []  folder with device files of your own; may be repeated
    """)  # fmt: skip


def device_folders(folders: list[Path]) -> list[Path]:
    """Returns the folders of --devices after a check that they exist.

    Raises:
        DeviceError: a folder does not exist.
    """
    for folder in folders:
        if not folder.is_dir():
            label = "" if find_device(str(folder)) is None else f", did you mean --device {folder}?"
            raise DeviceError(
                f"--devices {folder}: no such folder{label}; expected one with device files "
                "(*.yaml)"
            )
    return folders


def add_profile_option(parser: argparse.ArgumentParser) -> None:
    """Adds --profile, which `cdmpp.cli.main` implements."""
    add_table(parser, """
        --profile  print where the time was spent, as a tree, on stderr
    """)  # fmt: skip


def labels_of(values: Iterable[str] | None) -> list[str]:
    """Returns the distinct labels of a repeated, comma-separated `--device`."""
    labels = (label.strip() for value in values or () for label in value.split(","))
    return list(dict.fromkeys(label for label in labels if label))


def parse_seeds(text: str) -> tuple[int, ...]:
    """Returns the seeds of `--seeds`.

    Raises:
        UsageError: the text is not a list of distinct whole numbers >= 0.
    """
    try:
        seeds = tuple(int(word) for word in text.split(","))
    except ValueError:
        seeds = ()
    if not seeds or len(set(seeds)) != len(seeds) or min(seeds) < 0:
        raise UsageError(
            f"--seeds is {text!r}, expected different whole numbers >= 0, e.g. --seeds 0,1,2"
        )
    return seeds


def command_line() -> str:
    """Returns the command line of this process, to be repeated by a user."""
    program = Path(sys.argv[0])
    is_script = program.suffix == ".py" and program.parent.name == "scripts"
    if program.parts[-2:] == ("lab", "__main__.py"):
        words = ["python -m lab"]
    else:
        words = [f"python scripts/{program.name}" if is_script else "cdmpp"]
    return " ".join([*words, *(shlex.quote(word) for word in sys.argv[1:])])


def add_sizes_option(parser: argparse.ArgumentParser) -> None:
    """Adds --set, the values of symbolic sizes of programs."""
    add_table(parser, """
        --set NAME=N...  --program: value of a symbolic size, e.g. n=4096; may be repeated
    """)  # fmt: skip


def sizes_of(texts: Sequence[str] | None) -> dict[str, int]:
    """Returns name -> size from texts such as `n=4096`.

    Raises:
        UsageError: a text has another form, or a name has two sizes.
    """
    found: dict[str, int] = {}
    for text in texts or ():
        name, _, value = text.partition("=")
        if not name.isidentifier() or not value.isdecimal() or len(value) > 30:
            raise UsageError(f"--set {text[:80]!r}, expected a size of a program such as n=4096")
        if found.setdefault(name, int(value)) != int(value):
            raise UsageError(f"--set {text}: {name} is {found[name]} too, expected one size")
    return found
