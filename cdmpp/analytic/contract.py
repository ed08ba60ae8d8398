"""Base class of every fitted model of this package: save, load and the packaged model.

A family fits its model to a table of measurements (`Rows`). The model predicts rows of such a table
and does not read their measured times. `cdmpp.testing.check_analytic_model` tests this contract.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from pathlib import Path
from typing import ClassVar, Self

from cdmpp.files.places import package_folder
from cdmpp.pretrained import PRETRAINED


class AnalyticModel(ABC):
    """A fitted model of one family.

    Attributes:
        what: name of the model in error texts.
        again: command that creates the model.
        place: path of the packaged model in `cdmpp.pretrained`; "" if none is packaged.
    """

    what: ClassVar[str]
    again: ClassVar[str]
    place: ClassVar[str] = ""

    @abstractmethod
    def save(self, path: Path) -> None:
        """Writes the model into a file or folder.

        Raises:
            DataError: it cannot be written.
        """

    @classmethod
    @abstractmethod
    def load(cls, path: Path) -> Self:
        """Reads what `save` wrote; the loaded model's predictions are bit-identical.

        Raises:
            DataError: the model is missing, damaged or of another format.
        """

    @classmethod
    def packaged_path(cls) -> Path:
        """Returns the path of the model that comes with the package."""
        return package_folder("cdmpp.pretrained") / cls.place

    @classmethod
    def at(cls, path: Path | str) -> Self:
        """Loads the model at a path; `pretrained` is the model that comes with the package.

        Raises:
            DataError: as `load`.
        """
        return cls.load(cls.packaged_path() if str(path) == PRETRAINED else Path(path))
