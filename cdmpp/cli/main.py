"""The `cdmpp` command: finds and runs the sub-command, and prints expected errors on one line."""

from __future__ import annotations

import argparse
import logging
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from types import FrameType

from cdmpp import __version__
from cdmpp.cli.commands import (
    COMMANDS,
    LAB_COMMANDS,
    MAINTAINERS_COMMANDS,
    CommandParser,
    add_commands,
)
from cdmpp.cli.guide import questions_text
from cdmpp.errors import IS_COMMAND, CdmppError, DataError, UsageError, speaking_commands
from cdmpp.renames import current_option
from cdmpp.text import printable

#: Exit code of a command that a signal ended, plus the signal's number, as in shells.
_EXIT_SIGNALLED = 128
_EXIT_BROKEN_PIPE = 141


def main(argv: Sequence[str] | None = None) -> int:
    """Runs one command and returns the process's exit code.

    Expected errors are one line on stderr with the exit code of their class (2 usage, 3 data, 4
    device).

    Args:
        argv: arguments without the program's name; None = those of the process.
    """
    if argv is None:
        os.environ[IS_COMMAND] = "1"
    return run_main(build_parser(), sys.argv[1:] if argv is None else argv)


def run_main(parser: CommandParser, words: Sequence[str]) -> int:
    """Runs one command of a parser; see `main`."""
    try:
        with _ended_as_by_ctrl_c(), speaking_commands():
            return _run(parser, words)
    except KeyboardInterrupt as interrupt:
        print("cdmpp: interrupted; run the same command again to continue", file=sys.stderr)
        return _EXIT_SIGNALLED + next(iter(interrupt.args), signal.SIGINT)
    except BrokenPipeError:
        # The reader of the output has ended (`cdmpp ... | head`).
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return _EXIT_BROKEN_PIPE


def _run(parser: CommandParser, words: Sequence[str]) -> int:
    """Runs one command; prints expected errors."""
    name = next((word for word in words if not word.startswith("-")), "")
    if parser.prog == "cdmpp" and name in LAB_COMMANDS:
        from cdmpp.cli.shared.lab import run_in_lab

        try:
            return run_in_lab(f"`cdmpp {name}`", *words)
        except UsageError as error:
            return _said(error)
    args = parser.parse_args([current_option(word) for word in words])
    if args.command is None:
        print(questions_text())
        return 0
    _set_up_logging(args.verbose, is_quiet=args.quiet)
    is_timed = getattr(args, "profile", False)
    try:
        code: int = _timed(args.command, lambda: args.run(args)) if is_timed else args.run(args)
    except CdmppError as error:
        if args.verbose > 1:
            raise
        return _said(error)
    except BrokenPipeError:
        raise
    except OSError as error:  # e.g. a full disk, or a folder that is missing or not writable
        if args.verbose > 1:
            raise
        where = f"{error.filename}: " if error.filename else ""
        return _said(
            DataError(
                f"{where}cannot be read or written ({error.strerror or error}); finished work is "
                "kept. Fix this and rerun the same command"
            )
        )
    return code


def _said(error: CdmppError) -> int:
    print(printable(f"cdmpp: error: {error}"), file=sys.stderr)
    return error.exit_code


@contextmanager
def _ended_as_by_ctrl_c() -> Iterator[None]:
    """Makes SIGTERM end a command as Ctrl-C does: ends its processes, removes temporary files."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def end(number: int, frame: FrameType | None) -> None:
        interrupt = signal.getsignal(signal.SIGINT)
        if callable(interrupt) and interrupt is not signal.default_int_handler:
            interrupt(number, frame)
        else:
            raise KeyboardInterrupt(number)

    before = signal.signal(signal.SIGTERM, end)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def build_parser() -> CommandParser:
    """Returns the parser with every command, without importing their modules."""
    maintainers = "\n".join(f"    {one.name:13}{one.help}" for one in MAINTAINERS_COMMANDS)
    parser = CommandParser(
        prog="cdmpp",
        description="Predict how long a tensor program takes on a device, without running it.",
        epilog=f"for maintainers of cdmpp:\n{maintainers}\n\n"
        "`cdmpp COMMAND --help` explains a command.",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--version", action="version", version=f"cdmpp {__version__}")
    parser.add_argument("-v", "--verbose", action="count", default=0, help="print more messages")
    parser.add_argument("-q", "--quiet", action="store_true", help="print no progress")
    add_commands(parser, COMMANDS, "command", MAINTAINERS_COMMANDS, is_required=False)
    return parser


def run_command(*words: str) -> int:
    """Runs `cdmpp WORDS...` with the process's own arguments and returns the exit code."""
    return main([*words, *sys.argv[1:]])


def _timed(command: str, run: Callable[[], int]) -> int:
    """Runs a command with timers on and prints their tree, also after an error."""
    from cdmpp.timing.stats import enable_timers, global_stats, timer

    global_stats().reset()
    enable_timers()
    try:
        with timer(command):
            return run()
    finally:
        enable_timers(False)
        print(global_stats().tree_text(), file=sys.stderr)


class PrintableFormatter(logging.Formatter):
    """Log formatter that escapes control characters for the terminal."""

    def format(self, record: logging.LogRecord) -> str:
        """Returns the escaped line."""
        return printable(super().format(record))


def _set_up_logging(verbosity: int, *, is_quiet: bool) -> None:
    level = logging.ERROR if is_quiet else logging.WARNING
    if verbosity:
        level = logging.DEBUG if verbosity > 1 else logging.INFO
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(PrintableFormatter("cdmpp: %(levelname)s: %(message)s"))
    logging.basicConfig(level=level, handlers=[handler])
    logging.getLogger("cdmpp").setLevel(level)


if __name__ == "__main__":
    sys.exit(main())
