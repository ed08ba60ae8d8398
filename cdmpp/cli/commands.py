"""The table of commands: name, one line of help, module; only the typed command's is imported."""

from __future__ import annotations

import argparse
import importlib
from collections.abc import Sequence
from typing import Any, NamedTuple

from cdmpp.cli.guide import examples_text


class Command(NamedTuple):
    """A command of `cdmpp`, or a part of one.

    Attributes:
        module: of `package`; its `add_options(parser)` adds the options and its `run(args)` runs
            the command. With a part, as in `device.command:show`, they are `add_show_options` and
            `run_show`.
        parts: the sub-commands of a group, which has no module.
    """

    name: str
    help: str
    module: str = ""
    parts: tuple[Command, ...] = ()
    package: str = "cdmpp.cli"


COMMANDS = (
    Command(
        "dataset",
        "extract measure records into a dataset, look at datasets",
        parts=(
            Command("fetch", "fetch public measurement records by name", "dataset.fetch"),
            Command(
                "extract",
                "featurise a Tenset directory into an extracted dataset (Parquet)",
                "dataset.command:extract",
            ),
            Command(
                "stats",
                "summarise a Tenset directory or extracted dataset",
                "dataset.command:stats",
            ),
            Command(
                "audit",
                "find leakage, duplicates, wrong units and outliers; print the noise floor",
                "dataset.command:audit",
            ),
            Command(
                "transfer",
                "what programs measured on one device take on another",
                "dataset.transfer",
            ),
            Command("merge", "merge extracted datasets into a new one", "dataset.command:merge"),
            Command(
                "export",
                "write an extracted dataset in the layout of another tool",
                "dataset.command:export",
            ),
        ),
    ),
    Command("train", "train a cost model and judge it on tasks it has not seen", "train.command"),
    Command(
        "finetune",
        "adapt a trained model to a new device or network with a few measured tasks",
        "finetune",
    ),
    Command(
        "autotune",
        "find hyper-parameters of a cost model by trials on the validation part",
        "autotune",
    ),
    Command("evaluate", "judge a trained model on measured programs", "evaluate"),
    Command("predict", "predict the latency of programs, best first", "predict.command"),
    Command(
        "explain", "where the time of a program or network goes, line by line", "explain.command"
    ),
    Command(
        "compare", "networks on many devices side by side: time, memory, cost, energy", "compare"
    ),
    Command("serve", "answer predictions over HTTP, with hot models", "serve.command"),
    Command("measure", "build and time programs on a device", "measure"),
    Command("search", "find fast schedules of tasks or of a network", "search.command"),
    Command(
        "replay", "end-to-end latency of a network, replayed from its operators", "replay.command"
    ),
    Command(
        "device",
        "known devices, their numbers, occupancy",
        parts=(
            Command("list", "list the known devices", "device.command:list"),
            Command(
                "show", "show one device, with the source of every number", "device.command:show"
            ),
            Command(
                "add",
                "describe and measure this machine, and adapt the shipped model to it",
                "device.add",
            ),
            Command("curve", "print the errors that `device add` found", "device.add:curve"),
            Command(
                "occupancy",
                "how many blocks of a kernel a multiprocessor holds at once",
                "device.command:occupancy",
            ),
        ),
    ),
    Command("doctor", "health of measurements, or of this machine", "doctor"),
    Command(
        "analytic",
        "analytic models: convolutions, embedding lookups, operators, kernels of serving",
        parts=(
            Command(
                "conv",
                "cuDNN forward convolutions",
                parts=(
                    Command(
                        "fit",
                        "fit a model to measured kernels or layers",
                        "analytic.conv_models:fit",
                    ),
                    Command(
                        "evaluate",
                        "judge a model on the rows it was not fitted on",
                        "analytic.conv_models:evaluate",
                    ),
                    Command(
                        "predict",
                        "time, algorithm and limit of layers",
                        "analytic.conv_predict:predict",
                    ),
                    Command(
                        "pick",
                        "which algorithm is fastest for a layer",
                        "analytic.conv_predict:pick",
                    ),
                    Command(
                        "collect",
                        "measure on a machine with an NVIDIA GPU",
                        "analytic.conv_collect",
                    ),
                    Command(
                        "from-nvprof",
                        "workbooks of kernels from what nvprof printed",
                        "analytic.conv_nvprof",
                    ),
                ),
            ),
            Command(
                "embedding",
                "embedding lookups, forward and backward",
                parts=(
                    Command(
                        "predict",
                        "traffic, hit rate and time of one lookup kernel",
                        "analytic.embedding:predict",
                    ),
                    Command(
                        "measure",
                        "time torch's embedding_bag on this CPU; continues where it stopped",
                        "analytic.embedding:measure",
                    ),
                    Command("fit", "fit a CPU's costs to a campaign", "analytic.embedding:fit"),
                    Command(
                        "evaluate",
                        "errors on a campaign (split by shape), or on a GPU benchmark's CSV file",
                        "analytic.embedding:evaluate",
                    ),
                    Command(
                        "report",
                        "write embedding.md, .csv and .json",
                        "analytic.embedding:report",
                    ),
                ),
            ),
            Command(
                "operator",
                "bmm, linear, softmax, layer norm and element-wise operators on GPUs",
                parts=(
                    Command(
                        "fit",
                        "fit the model on a folder of operator tables",
                        "analytic.operator:fit",
                    ),
                    Command(
                        "evaluate",
                        "judge the model beside recorded peers",
                        "analytic.operator:evaluate",
                    ),
                    Command("predict", "time of one operator", "analytic.operator:predict"),
                ),
            ),
            Command(
                "kernels",
                "products, attention and collectives of serving frameworks on today's GPUs",
                parts=(
                    Command(
                        "fit",
                        "fit the models on a folder of measured kernels",
                        "analytic.kernels:fit",
                    ),
                    Command(
                        "evaluate",
                        "judge the models on devices left out, new shapes and larger ones",
                        "analytic.kernels:evaluate",
                    ),
                    Command("predict", "time of one call", "analytic.kernels:predict"),
                ),
            ),
        ),
    ),
    Command("roofline", "what bounds a program or an operator", "roofline"),
    Command("profile", "where the time goes: read profiles of other tools", "profile"),
    Command(
        "networks",
        "whole networks: time, memory and utilisation from the operator graph",
        parts=(
            Command(
                "generate",
                "draw architectures and write their operator graphs",
                "networks.generate",
            ),
            Command(
                "measure",
                "run drawn networks: time, memory, utilisation, infer and train",
                "networks.measure",
            ),
            Command(
                "train",
                "fit a model to measured networks and judge it on architectures it never saw",
                "networks.train:train",
            ),
            Command(
                "evaluate", "errors of a fitted model on a data set", "networks.train:evaluate"
            ),
            Command(
                "package",
                "make a run's model the packaged one (`make pretrained-networks`)",
                "networks.train:package",
            ),
            Command(
                "convert",
                "the published layout (cg, label) to a data set of ours, or back",
                "networks.data:convert",
            ),
            Command(
                "statistics",
                "what a data set of networks spans: size, time, memory, utilisation",
                "networks.data:statistics",
            ),
        ),
    ),
    Command("completion", "print a script that completes commands in your shell", "completion"),
)

#: What those need who maintain cdmpp, apart in the help.
MAINTAINERS_COMMANDS = (
    Command(
        "train-code",
        "teach a trained model to read machine code",
        "train.train_code",
    ),
)

#: Commands that are in the laboratory now, `python -m lab NAME`; their names work here until 0.3.
LAB_COMMANDS = ("benchmark", "golden", "pretrain")


class CommandParser(argparse.ArgumentParser):
    """Parser of a command, which gets its options from the command's module once it is typed."""

    command: Command | None = None

    def fill(self) -> None:
        """Adds the options of the command; a second time does nothing."""
        command, self.command = self.command, None
        if command is not None:
            _fill(self, command)

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        """Parses as the base class does, with the options of the command."""
        self.fill()
        return super().parse_known_args(args, namespace)

    def format_help(self) -> str:
        """Returns the help, of a command with its examples."""
        words = self.prog.partition(" ")[2]
        text = super().format_help()
        return f"{text}\n{examples_text(words)}\n" if words else text

    def parts(self) -> list[CommandParser]:
        """Returns the parsers of the sub-commands, with their options."""
        self.fill()
        groups = [a for a in self._actions if isinstance(a, argparse._SubParsersAction)]
        return [part for group in groups for part in group.choices.values()]


def filled(parser: CommandParser) -> list[CommandParser]:
    """Returns a parser and those of all its sub-commands, with their options."""
    return [parser, *(below for part in parser.parts() for below in filled(part))]


def add_commands(
    parser: CommandParser,
    commands: Sequence[Command],
    dest: str,
    others: Sequence[Command] = (),
    *,
    is_required: bool = True,
) -> None:
    """Adds a table of commands to a parser.

    Args:
        dest: attribute that gets the typed name.
        others: commands that the list of the help leaves out.
        is_required: whether one has to be typed.
    """
    parts = parser.add_subparsers(dest=dest, required=is_required, metavar="COMMAND")
    for command in commands:
        parts.add_parser(command.name, help=command.help).command = command
    for command in others:  # without a help they are in no list but the epilogue's
        parts.add_parser(command.name).command = command


def _fill(parser: CommandParser, command: Command) -> None:
    if command.parts:
        add_commands(parser, command.parts, f"{command.name}_command")
        return
    name, _, part = command.module.partition(":")
    module = importlib.import_module(f"{command.package}.{name}")
    parser.set_defaults(run=getattr(module, f"run_{part}" if part else "run"))
    getattr(module, f"add_{part}_options" if part else "add_options")(parser)
