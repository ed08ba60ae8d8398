"""The list of predictions that `Model.predict` returns."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from cdmpp.api.answers import Answers, draw_times
from cdmpp.errors import UsageError
from cdmpp.predict.explained import ExplainedAnswer
from cdmpp.predict.prediction import Prediction
from cdmpp.text import counted, interval_text, seconds_text

if TYPE_CHECKING:
    from matplotlib.axes import Axes

#: Public name of a row in `cdmpp`.
Predicted = Prediction


class Predictions(Answers[Prediction]):
    """A list of predictions. The values of a single prediction are attributes of the list.

    Example:
        >>> found = Predictions([Prediction("scale", "v100", 2e-6, 1e-6, 4e-6)])
        >>> found.latency_s, len(found), str(found[0])
        (2e-06, 1, 'scale on v100: 2.00 µs [1.00, 4.00]')

    Attributes:
        notes: which records of a file were not predicted, and why.
    """

    @property
    def only(self) -> Prediction:
        """The only prediction.

        Raises:
            UsageError: the list does not have exactly one prediction.
        """
        if len(self) != 1:
            raise UsageError(
                f"{counted(len(self), 'prediction')} "
                f"({', '.join(map(str, self._found[:3]))}{', ...' if len(self) > 3 else ''}), "
                "expected one; select one by index: found[0]"
            )
        return self._found[0]

    @property
    def latency_s(self) -> float:
        """Seconds of the only prediction.

        Raises:
            UsageError: the list does not have exactly one prediction, or it has no latency; with
                the reason.
        """
        one = self.only
        if one.latency_s is None:
            raise UsageError(f"{one.name} has no latency on {one.device}: {'; '.join(one.reasons)}")
        return one.latency_s

    @property
    def low_s(self) -> float | None:
        """Lower end of the only prediction's interval; None if it has none."""
        return self.only.low_s

    @property
    def high_s(self) -> float | None:
        """Upper end of the only prediction's interval; None if it has none."""
        return self.only.high_s

    def explain(self, *, machine_code: bool | None = None) -> ExplainedAnswer:
        """Explains the only prediction; see `Prediction.explain`."""
        return self.only.explain(machine_code=machine_code)

    def to_json(self) -> list[dict[str, Any]]:
        """Returns the rows that `cdmpp predict --json` prints."""
        return [one.to_json() for one in self._found]

    def table(self) -> list[list[str]]:
        """Returns titles and lines: name, device, latency, and the columns that are not empty."""
        columns = {
            "program": [one.name for one in self._found],
            "device": [one.device for one in self._found],
            "run": [_run(one) for one in self._found],
            "batch": [str(one.batch or "") for one in self._found],
            "latency [90 % interval]": [
                interval_text(one.latency_s, one.low_s, one.high_s) for one in self._found
            ],
            "measured": [seconds_text(one.measured_s, none="") for one in self._found],
            "note": ["; ".join(one.reasons) for one in self._found],
        }
        used = {title: cells for title, cells in columns.items() if any(cells)}
        return [list(used), *map(list, zip(*used.values(), strict=True))]

    def plot(self, axes: Axes | None = None) -> Axes:
        """Draws each latency with its interval, and the measured time.

        Args:
            axes: matplotlib axes; None = a new figure.

        Raises:
            UsageError: no row has a latency.
        """
        columns = [
            [one.name for one in self._found], [one.device for one in self._found],
            [_run(one) for one in self._found],
            [f"batch {one.batch}" if one.batch else "" for one in self._found],
        ]  # fmt: skip
        told = [cells for cells in columns if len(set(cells)) > 1] or columns[:1]
        names = [", ".join(filter(None, words)) for words in zip(*told, strict=True)]
        return draw_times(axes, [
            (name, one.latency_s, one.low_s, one.high_s, one.measured_s)
            for name, one in zip(names, self._found, strict=True)
            if one.latency_s is not None
        ])  # fmt: skip


def _run(one: Prediction) -> str:
    """Returns how a network is run, e.g. `torch-eager infer`; empty for programs."""
    return " ".join(filter(None, (one.way, one.mode)))
