"""Progress of a measuring campaign: a bar on a terminal, plain lines elsewhere."""

from __future__ import annotations

import contextlib
import sys
import time
from collections.abc import Callable, Iterator
from typing import Protocol

_SECONDS_BETWEEN_LINES = 10.0


class CampaignProgress(Protocol):
    """How far a campaign is; `seconds_left` is None while nothing is known."""

    @property
    def stage(self) -> str: ...

    @property
    def done(self) -> int: ...

    @property
    def total(self) -> int: ...

    @property
    def failed(self) -> int: ...

    @property
    def seconds_left(self) -> float | None: ...


@contextlib.contextmanager
def campaign_progress(*, is_quiet: bool) -> Iterator[Callable[[CampaignProgress], None] | None]:
    """Yields a callback that shows how far a campaign is on stderr; None = shows nothing."""
    if is_quiet:
        yield None
    elif sys.stderr.isatty():
        with _bar() as show:
            yield show
    else:
        yield _lines()


@contextlib.contextmanager
def _bar() -> Iterator[Callable[[CampaignProgress], None]]:
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn

    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(),
               TextColumn("{task.fields[note]}"))  # fmt: skip
    with Progress(*columns, console=Console(stderr=True)) as bar:
        line = bar.add_task("starting", total=None, note="")

        def show(progress: CampaignProgress) -> None:
            bar.update(
                line, description=progress.stage, completed=progress.done, total=progress.total,
                note=_note(progress),
            )  # fmt: skip

        yield show


def _lines() -> Callable[[CampaignProgress], None]:
    last_shown = float("-inf")

    def show(progress: CampaignProgress) -> None:
        nonlocal last_shown
        now = time.monotonic()
        if now - last_shown < _SECONDS_BETWEEN_LINES and progress.done < progress.total:
            return
        last_shown = now
        text = f"{progress.stage}: {progress.done} of {progress.total}, {_note(progress)}"
        print(text, file=sys.stderr)

    return show


def _note(progress: CampaignProgress) -> str:
    left = progress.seconds_left
    note = f"{progress.failed} failed"
    return note if left is None else f"{note}, about {left / 60:.0f} min left"
