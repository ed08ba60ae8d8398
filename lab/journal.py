"""Resumption of experiments: finished cells are lines of a journal, and a rerun skips them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from cdmpp.files.atomic import make_folder
from cdmpp.files.journal import LineJournal, read_lines


class Journal:
    """Finished cells of an experiment, by key.

    Args:
        path: the journal; created with its folder when the first cell finishes.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._cells = {line["key"]: line["value"] for line in read_lines(path)}

    def cell(self, key: str, measure: Callable[[], Any]) -> Any:
        """Returns the value of a cell; measures and stores it if it is missing.

        Args:
            measure: returns a JSON value.
        """
        if key not in self._cells:
            value = measure()
            make_folder(self.path.parent, what="finished cells")
            with LineJournal(self.path, sort_keys=False) as journal:
                journal.append({"key": key, "value": value})
            self._cells[key] = value
        return self._cells[key]

    def cells(self) -> Mapping[str, Any]:
        """Returns the finished cells by key, in the order of completion."""
        return self._cells
