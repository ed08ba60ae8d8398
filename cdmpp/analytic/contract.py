"""What every fitted model of this package does: it is saved, loaded, and one may be packaged.

A family fits its model to a table of measurements (`Rows`); the model predicts such rows and reads
no measured time. `cdmpp.testing.check_analytic_model` tests that.
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
        what: name of such a model in error texts.
        again: what makes one.
        place: of the packaged one in `cdmpp.pretrained`; "" = none.
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
        """Reads what `save` wrote; predicts the same to the bit.

        Raises:
            DataError: missing, damaged, or of another format.
        """

    @classmethod
    def packaged_path(cls) -> Path:
        """Returns where the model is that comes with the package."""
        return package_folder("cdmpp.pretrained") / cls.place

    @classmethod
    def at(cls, path: Path | str) -> Self:
        """Returns the model of a path; `pretrained` is the one that comes with the package.

        Raises:
            DataError: as `load`.
        """
        return cls.load(cls.packaged_path() if str(path) == PRETRAINED else Path(path))
