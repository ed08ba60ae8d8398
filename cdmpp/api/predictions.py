"""Predictions in a list, as `Model.predict` returns them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, overload

from cdmpp.errors import UsageError
from cdmpp.predict.explained import ExplainedAnswer
from cdmpp.predict.prediction import Prediction

#: What `import cdmpp` calls a row.
Predicted = Prediction


class Predictions(Sequence[Prediction]):
    """A list of predictions. The values of a single prediction are attributes of the list.

    Example:
        >>> found = Predictions([Prediction("scale", "v100", 2e-6, 1e-6, 4e-6)])
        >>> found.latency_s, len(found), str(found[0])
        (2e-06, 1, 'scale on v100: 2.00 µs [1.00, 4.00]')

    Attributes:
        notes: which records of a file were not predicted, and why.
    """

    notes: tuple[str, ...]

    def __init__(self, found: Iterable[Prediction] = (), *, notes: Iterable[str] = ()) -> None:
        self._found = tuple(found)
        self.notes = tuple(notes)

    def __len__(self) -> int:
        return len(self._found)

    @overload
    def __getitem__(self, place: int) -> Prediction: ...

    @overload
    def __getitem__(self, place: slice) -> Predictions: ...

    def __getitem__(self, place: int | slice) -> Prediction | Predictions:
        if isinstance(place, slice):
            return Predictions(self._found[place], notes=self.notes)
        return self._found[place]

    @property
    def only(self) -> Prediction:
        """The only prediction.

        Raises:
            UsageError: there are none or several.
        """
        if len(self) != 1:
            raise UsageError(
                f"{len(self)} predictions ({', '.join(map(str, self._found[:3]))}"
                f"{', ...' if len(self) > 3 else ''}), expected one; take them by place: found[0]"
            )
        return self._found[0]

    @property
    def latency_s(self) -> float:
        """Seconds of the only prediction.

        Raises:
            UsageError: there are none or several, or it has no latency; says why.
        """
        one = self.only
        if one.latency_s is None:
            raise UsageError(f"{one.name} has no latency on {one.device}: {'; '.join(one.reasons)}")
        return one.latency_s

    @property
    def low_s(self) -> float | None:
        """Lower end of the only prediction's interval; None without one."""
        return self.only.low_s

    @property
    def high_s(self) -> float | None:
        """Upper end of the only prediction's interval; None without one."""
        return self.only.high_s

    def explain(self, *, machine_code: bool = False) -> ExplainedAnswer:
        """Explains the only prediction; see `Prediction.explain`."""
        return self.only.explain(machine_code=machine_code)

    def to_json(self) -> list[dict[str, Any]]:
        """Returns what `cdmpp predict --json` prints."""
        return [one.to_json() for one in self._found]

    def __repr__(self) -> str:
        return f"Predictions({list(self._found)!r})"

    def __str__(self) -> str:
        return "\n".join(map(str, self._found))
