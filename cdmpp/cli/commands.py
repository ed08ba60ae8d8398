"""The table of commands: name, help line, module; only the typed command's module is imported."""

from __future__ import annotations

import argparse
import importlib
import itertools
import re
from collections.abc import Sequence
from typing import Any, NamedTuple, NoReturn

from cdmpp.cli.guide import examples_text
from cdmpp.text import nearest, printable


class Command(NamedTuple):
    """A command of `cdmpp`, or a sub-command.

    Attributes:
        module: module of `package`, whose `add_options(parser)` adds the options and whose
            `run(args)` runs the command. With a suffix, as in `device.command:show`, these are
            `add_show_options` and `run_show`.
        parts: the sub-commands of a group, which has no module.
    """

    name: str
    help: str
    module: str = ""
    parts: tuple[Command, ...] = ()
    package: str = "cdmpp.cli"


def commands_of(table: str) -> tuple[Command, ...]:
    """Parses a table of commands: `NAME = MODULE`, two spaces, the help; sub-commands indented."""
    return _commands(table.strip("\n").splitlines())


def _commands(lines: Sequence[str]) -> tuple[Command, ...]:
    heads = [number for number, line in enumerate(lines) if not line.startswith(" ")]
    found = []
    for start, end in itertools.pairwise([*heads, len(lines)]):
        head, _, text = lines[start].partition("  ")
        name, _, module = head.partition(" = ")
        parts = _commands([line[4:] for line in lines[start + 1 : end]])
        found.append(Command(name, text.strip(), module, parts))
    return tuple(found)


COMMANDS = commands_of("""
dataset  extract measure records into a dataset, look at datasets
    fetch = dataset.fetch  fetch public measurement records by name
    extract = dataset.command:extract  featurise measure records into a dataset (Parquet)
    stats = dataset.command:stats  summarise a Tenset directory or extracted dataset
    audit = dataset.command:audit  find leakage, duplicates, wrong units and outliers; noise floor
    transfer = dataset.transfer  predict on one device the programs measured on another
    merge = dataset.command:merge  merge extracted datasets into a new one
    export = dataset.command:export  write an extracted dataset in the layout of another tool
train = train.command  train a cost model and evaluate it on unseen tasks
finetune = finetune  adapt a trained model to a new device or network with a few measured tasks
autotune = autotune  tune the hyper-parameters of a cost model
runs = runs  list and compare run folders
evaluate = evaluate  evaluate a trained model on measured programs
predict = predict.command  predict the latency of programs, best first
explain = explain.command  explain where the time of a program or network goes, line by line
compare = compare.command  compare networks across devices: time, memory, cost, energy
serve = serve.command  serve predictions over HTTP, with models kept in memory
measure = measure  build and time programs on a device
search = search.command  find fast schedules of tasks or of a network
replay = replay.command  predict the latency of a network by replaying its operators
device  list, describe and add devices; compute occupancy
    list = device.command:list  list the known devices
    show = device.command:show  show one device, with the source of every number
    add = device.add  describe and measure this machine, and adapt the shipped model to it
    curve = device.add:curve  print the error curve of `device add`
    occupancy = device.command:occupancy  compute how many blocks of a kernel fit on a core
doctor = doctor  check the health of measurements, or of this machine
analytic  analytic models: convolutions, embedding lookups, operators, kernels of serving
    conv  cuDNN forward convolutions
        fit = analytic.conv_models:fit  fit a model to measured kernels or layers
        evaluate = analytic.conv_models:evaluate  evaluate a model on the rows it was not fitted on
        predict = analytic.conv_predict:predict  predict time, algorithm and limit of layers
        pick = analytic.conv_predict:pick  predict the fastest algorithm of a layer
        collect = analytic.conv_collect  measure on a machine with an NVIDIA GPU
        from-nvprof = analytic.conv_nvprof  build kernel workbooks from the output of nvprof
    embedding  embedding lookups, forward and backward
        predict = analytic.embedding:predict  predict traffic, hit rate and time of a lookup kernel
        measure = analytic.embedding:measure  time torch's embedding_bag on this CPU; resumes
        fit = analytic.embedding:fit  fit a CPU's costs to a campaign
        evaluate = analytic.embedding:evaluate  evaluate on a campaign, or on a GPU benchmark's CSV
        report = analytic.embedding:report  write embedding.md, .csv and .json
    operator  bmm, linear, softmax, layer norm and element-wise operators on GPUs
        fit = analytic.operator:fit  fit the model on a folder of operator tables
        evaluate = analytic.operator:evaluate  evaluate the model and recorded baselines
        predict = analytic.operator:predict  predict the time of one operator
    kernels  matrix products, attention and collectives of serving frameworks
        fit = analytic.kernels:fit  fit the models on a folder of measured kernels
        evaluate = analytic.kernels:evaluate  evaluate on left-out devices, new and larger shapes
        predict = analytic.kernels:predict  predict the time of one call
roofline = roofline  compute the lower bound of a program or an operator
profile = profile  read profiles of other tools, show where the time goes
networks  predict time, memory and utilisation of whole networks
    generate = networks.generate  generate random architectures and their operator graphs
    measure = networks.measure  measure random networks: time, memory, utilisation
    train = networks.train:train  fit a model and evaluate it on unseen architectures
    evaluate = networks.train:evaluate  evaluate a fitted model on a data set
    package = networks.train:package  package the model of a run
    convert = networks.data:convert  convert the published layout (cg, label) to a data set, or back
    statistics = networks.data:statistics  print the range of a data set of networks
completion = completion  print a shell completion script
""")  # fmt: skip

#: Commands for maintainers of cdmpp, listed separately in the help.
MAINTAINERS_COMMANDS = (
    Command(
        "train-code",
        "extend a trained model to read machine code",
        "train.train_code",
    ),
    Command(
        "distil",
        "distil a trained model into a small network for searches",
        "train.distil",
    ),
)

#: Commands that moved to `python -m lab NAME`; their names work here until 0.3.
LAB_COMMANDS = ("benchmark", "golden", "pretrain")


class CommandParser(argparse.ArgumentParser):
    """Parser of a command, which adds the options of the command's module when it is used."""

    command: Command | None = None
    #: The sub-commands of a group.
    group: tuple[Command, ...] = ()

    def fill(self) -> None:
        """Adds the options of the command; a second call does nothing."""
        command, self.command = self.command, None
        if command is not None:
            _fill(self, command)

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        """Parses as the base class does, with the options of the command; rejects other options."""
        self.fill()
        found, others = super().parse_known_args(args, namespace)
        if others:
            near = nearest(others[0].split("=")[0], self._option_string_actions)
            self.error(f"unknown argument {' '.join(others)!r}{near}")
        return found, others

    def format_help(self) -> str:
        """Returns the help with examples; for a group also the sub-commands of its groups."""
        words = self.prog.partition(" ")[2]
        text = super().format_help()
        inner = [
            f"    {f'{part.name} {one.name}':24}{one.help}"
            for part in self.group
            for one in part.parts
        ]
        if inner:
            text += "\n".join(["\ncommands of the groups:", *inner, ""])
        return f"{text}\n{examples_text(words)}\n" if words else text

    def error(self, message: str) -> NoReturn:
        """Exits with a one-line error and exit code 2; the usage is left to `--help`."""
        self.exit(2, printable(f"cdmpp: error: {_sentence(message)}; see: {self.prog} --help\n"))

    def parts(self) -> list[CommandParser]:
        """Returns the parsers of the sub-commands, with their options."""
        self.fill()
        groups = [a for a in self._actions if isinstance(a, argparse._SubParsersAction)]
        return [part for group in groups for part in group.choices.values()]


#: Messages of argparse about a value that is not a choice, or has another type.
_CHOICE = re.compile(r"argument (.+?): invalid choice: '(.*)' \(choose from (.*)\)", re.S)
_VALUE = re.compile(r"argument (.+?): invalid (\w+) value: (.*)", re.S)
_TYPES = {"int": "a whole number", "float": "a number"}
#: Errors list at most this many choices; otherwise only the nearest.
_MOST_CHOICES = 12


def _sentence(message: str) -> str:
    """Returns argparse's message in the form of cdmpp's errors."""
    choice, value = _CHOICE.fullmatch(message), _VALUE.fullmatch(message)
    if choice is not None:
        name, got = choice[1], choice[2]
        choices = [one.strip("' ") for one in choice[3].split(",")]
        few = f", expected one of {', '.join(choices)}" if len(choices) <= _MOST_CHOICES else ""
        return f"{name}: got {got!r}{nearest(got, choices)}{few}"
    if value is not None:
        return f"{value[1]}: got {value[3]}, expected {_TYPES.get(value[2], value[2])}"
    return message.removeprefix("argument ")


def filled(parser: CommandParser) -> list[CommandParser]:
    """Returns a parser and the parsers of all its sub-commands, with their options."""
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
        dest: attribute for the typed name.
        others: commands that are not listed in the help.
        is_required: whether a command must be given.
    """
    parts = parser.add_subparsers(dest=dest, required=is_required, metavar="COMMAND")
    for command in commands:
        parts.add_parser(command.name, help=command.help).command = command
    for command in others:  # without a help, argparse does not list them; the epilogue does
        parts.add_parser(command.name).command = command


def _fill(parser: CommandParser, command: Command) -> None:
    if command.parts:
        parser.group = command.parts
        add_commands(parser, command.parts, f"{command.name}_command")
        return
    name, _, part = command.module.partition(":")
    module = importlib.import_module(f"{command.package}.{name}")
    parser.set_defaults(run=getattr(module, f"run_{part}" if part else "run"))
    getattr(module, f"add_{part}_options" if part else "add_options")(parser)
