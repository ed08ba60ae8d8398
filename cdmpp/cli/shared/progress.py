"""Progress on stderr: a bar on a terminal, plain lines elsewhere."""

from __future__ import annotations

import contextlib
import sys
import time
from collections.abc import Callable, Iterator

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from cdmpp.datasets.fetch.resume import FetchProgress
from cdmpp.models.loop.progress import RunProgress, TrainProgress
from cdmpp.processes.campaign import CampaignProgress

#: Shows the current work, the amount done, the total (None = unknown), and a note.
Show = Callable[[str, int, int | None, str], None]

_SECONDS_BETWEEN_LINES = 10.0
_MEGABYTE = 1_000_000


@contextlib.contextmanager
def progress(*, is_quiet: bool) -> Iterator[Show]:
    """Yields a callback that shows progress; it does nothing if quiet."""
    if is_quiet:
        yield lambda what, done, total, note: None
    elif sys.stderr.isatty():
        with _bar() as show:
            yield show
    else:
        yield _lines()


@contextlib.contextmanager
def training_progress(*, is_quiet: bool) -> Iterator[RunProgress]:
    """Yields a callback for `train_run`."""
    with progress(is_quiet=is_quiet) as show:

        def show_step(what: str, step: TrainProgress | None) -> None:
            if step is None:
                show(what, 0, None, "")
                return
            best = step.validation_loss
            left = (step.steps - step.step) / max(step.steps_per_s, 1e-9)
            note = f"epoch {step.epoch}, loss {step.loss:.3f}"
            note += "" if best is None else f", best validation {best:.3f}"
            show(what, step.step, step.steps, f"{note}, at most {left:.0f} s left")

        yield show_step


@contextlib.contextmanager
def campaign_progress(*, is_quiet: bool) -> Iterator[Callable[[CampaignProgress], None]]:
    """Yields a callback that shows the progress of a campaign."""
    with progress(is_quiet=is_quiet) as show:

        def show_campaign(now: CampaignProgress) -> None:
            left = now.seconds_left
            note = f"{now.failed} failed"
            note += "" if left is None else f", about {left / 60:.0f} min left"
            show(now.stage, now.done, now.total, note)

        yield show_campaign


@contextlib.contextmanager
def fetch_progress(*, is_quiet: bool) -> Iterator[Callable[[FetchProgress], None]]:
    """Yields a callback that shows the progress of a download, in megabytes."""
    with progress(is_quiet=is_quiet) as show:

        def show_fetch(now: FetchProgress) -> None:
            left, rate = now.seconds_left, now.bytes_per_s
            done, total = now.done // _MEGABYTE, None
            note = f"{done} MB"
            if now.total is not None:
                total, note = -(-now.total // _MEGABYTE), "MB"
                done = total if now.done == now.total else done
            note += "" if rate is None else f", {rate / _MEGABYTE:.1f} MB/s"
            note += "" if left is None else f", about {left:.0f} s left"
            show(now.what, done, total, note if now.done or total else "")

        yield show_fetch


@contextlib.contextmanager
def _bar() -> Iterator[Show]:
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(),
               TextColumn("{task.fields[note]}"), TimeElapsedColumn())  # fmt: skip
    with Progress(*columns, console=Console(stderr=True)) as bar:
        line = bar.add_task("starting", total=None, note="")
        last_what = ""

        def show(what: str, done: int, total: int | None, note: str) -> None:
            nonlocal last_what, line
            if what != last_what:
                last_what = what
                bar.remove_task(line)  # `reset` would keep the total if the new one is unknown
                line = bar.add_task(what, total=total, note=note)
            bar.update(line, description=what, completed=done, total=total, note=note)

        yield show


def _lines() -> Show:
    """Returns a callback that prints a line when work begins or ends, and every few seconds."""
    last_what, last_shown = "", float("-inf")

    def show(what: str, done: int, total: int | None, note: str) -> None:
        nonlocal last_what, last_shown
        now = time.monotonic()
        is_over = total is not None and done >= total
        if what == last_what and not is_over and now - last_shown < _SECONDS_BETWEEN_LINES:
            return
        last_what, last_shown = what, now
        details = [
            *([f"{done} of {total}"] if total is not None else []),
            *([note] if note else []),
        ]
        print(f"{what}: {', '.join(details)}" if details else what, file=sys.stderr, flush=True)

    return show
