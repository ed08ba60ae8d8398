"""Progress of a training: a bar with the remaining time on a terminal, plain lines elsewhere."""

from __future__ import annotations

import contextlib
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any

RunProgress = Callable[[str, dict[str, Any] | None], None]

_SECONDS_BETWEEN_LINES = 10.0


@contextlib.contextmanager
def training_progress(*, is_quiet: bool) -> Iterator[RunProgress]:
    """Yields a callback for `train_run` that shows what is being done on stderr."""
    if is_quiet:
        yield _ignore
    elif sys.stderr.isatty():
        with _bar() as show:
            yield show
    else:
        yield _lines()


@contextlib.contextmanager
def _bar() -> Iterator[RunProgress]:
    from rich.console import Console
    from rich.progress import (
        BarColumn,
        Progress,
        TaskID,
        TextColumn,
        TimeElapsedColumn,
        TimeRemainingColumn,
    )

    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        TextColumn("{task.fields[note]}"),
        TimeElapsedColumn(),
        TextColumn("remaining at most"),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=Console(stderr=True)) as bar:
        tasks: dict[str, TaskID] = {}

        def show(what: str, progress: dict[str, Any] | None) -> None:
            if what not in tasks:
                for other in tasks.values():
                    bar.update(other, visible=False)
                tasks[what] = bar.add_task(what, total=None, note="")
            if progress:
                bar.update(
                    tasks[what],
                    completed=progress["step"],
                    total=progress["steps"],
                    note=_note(progress),
                )

        yield show


def _lines() -> RunProgress:
    last_shown = 0.0
    last_what = ""

    def show(what: str, progress: dict[str, Any] | None) -> None:
        nonlocal last_shown, last_what
        now = time.monotonic()
        if what != last_what:
            last_what, last_shown = what, now
            print(what, file=sys.stderr)
        if progress and now - last_shown >= _SECONDS_BETWEEN_LINES:
            last_shown = now
            left = (progress["steps"] - progress["step"]) / max(progress["steps_per_s"], 1e-9)
            print(
                f"{what}: step {progress['step']} of at most {progress['steps']}, "
                f"{_note(progress)}, "
                f"at most {left:.0f} s left",
                file=sys.stderr,
            )

    return show


def _note(progress: dict[str, Any]) -> str:
    best = progress["validation_loss"]
    text = f"epoch {progress['epoch']}, loss {progress['loss']:.3f}"
    return text if best is None else f"{text}, best validation {best:.3f}"


def _ignore(what: str, progress: dict[str, Any] | None) -> None:
    """Shows nothing."""
