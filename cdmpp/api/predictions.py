"""What a model says of programs, records and networks: one row each, and their list."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, overload

from cdmpp.errors import UsageError
from cdmpp.report.explain_text import network_text, program_text
from cdmpp.text import interval_text

if TYPE_CHECKING:
    from tvm_helper.predict.answers import Prediction
    from tvm_helper.replay.ways import NetworkAnswer


@dataclass(frozen=True)
class ExplainedAnswer:
    """Why something takes as long as predicted; `print` shows it as `cdmpp explain` does.

    Attributes:
        row: all of it as JSON values, as `cdmpp explain --json` prints them (`docs/explain.md`).
    """

    row: Mapping[str, Any]

    def text(self, *, is_painted: bool = False) -> str:
        """Returns it as lines of text.

        Args:
            is_painted: whether it goes to a terminal: with colours, and no line wider than it.
        """
        text = network_text if "kernels" in self.row else program_text
        return text(self.row, is_painted=is_painted)

    def __str__(self) -> str:
        return self.text()


@dataclass(frozen=True)
class Predicted:
    """A program, record or network on a device.

    Attributes:
        name: of the program, the task or the network.
        device: label.
        latency_s: predicted seconds, of an iteration where it is a network; None where it cannot
            be predicted, `reasons` says why.
        low_s, high_s: ends of its 90 % interval; None without one.
        measured_s: measured seconds; None where it was not measured on the device.
        out_of_distribution: whether program or device is strange to the model; None where that is
            not known.
        reasons: why it is a guess, or why there is no latency.
        way: how a network is run: `tvm-untuned`, `tvm-tuned` or `torch-eager`; None of others.
        mode: whether a network is asked (`infer`) or trained (`train`); None of others.
        batch: samples of a network's iteration; None = as its file says.
        detail: all that is known of it, without promises about its form.
    """

    name: str
    device: str
    latency_s: float | None
    low_s: float | None = None
    high_s: float | None = None
    measured_s: float | None = None
    out_of_distribution: bool | None = None
    reasons: tuple[str, ...] = ()
    way: str | None = None
    mode: str | None = None
    batch: int | None = None
    detail: Prediction | NetworkAnswer | None = field(default=None, repr=False, compare=False)
    _row: Callable[[], dict[str, Any]] = field(default=dict, repr=False, compare=False)
    _explain: Callable[[bool], ExplainedAnswer] | None = field(
        default=None, repr=False, compare=False
    )

    def to_json(self) -> dict[str, Any]:
        """Returns its row of `cdmpp predict --json`."""
        return self._row()

    def explain(self, *, machine_code: bool = False) -> ExplainedAnswer:
        """Returns why it takes as long as predicted, as `cdmpp explain` says it.

        Args:
            machine_code: whether the program is compiled, and it is said what the compiler made of
                it.

        Raises:
            UsageError: it is a record or a sample, which has no text; or a network as torch runs
                it.
        """
        if self._explain is None:
            raise UsageError(
                f"{self.name} has no text to explain; expected a tensor program, or a network as "
                "TVM compiles it"
            )
        return self._explain(machine_code)

    def __str__(self) -> str:
        latency = interval_text(self.latency_s, self.low_s, self.high_s)
        return f"{self.name} on {self.device}: {latency}"


class Predictions(Sequence[Predicted]):
    """Predictions in order. Where there is only one, its values are there without an index.

    Example:
        >>> found = Predictions([Predicted("scale", "v100", 2e-6, 1e-6, 4e-6)])
        >>> found.latency_s, len(found), str(found[0])
        (2e-06, 1, 'scale on v100: 2.00 µs [1.00, 4.00]')

    Attributes:
        notes: what was not predicted of a record file, and why, in words.
    """

    notes: tuple[str, ...]

    def __init__(self, found: Iterable[Predicted] = (), *, notes: Iterable[str] = ()) -> None:
        self._found = tuple(found)
        self.notes = tuple(notes)

    def __len__(self) -> int:
        return len(self._found)

    @overload
    def __getitem__(self, place: int) -> Predicted: ...

    @overload
    def __getitem__(self, place: slice) -> Predictions: ...

    def __getitem__(self, place: int | slice) -> Predicted | Predictions:
        if isinstance(place, slice):
            return Predictions(self._found[place], notes=self.notes)
        return self._found[place]

    @property
    def only(self) -> Predicted:
        """The one prediction that there is.

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
        """Returns why the only prediction is what it is; see `Predicted.explain`."""
        return self.only.explain(machine_code=machine_code)

    def to_json(self) -> list[dict[str, Any]]:
        """Returns what `cdmpp predict --json` prints."""
        return [one.to_json() for one in self._found]

    def __repr__(self) -> str:
        return f"Predictions({list(self._found)!r})"

    def __str__(self) -> str:
        return "\n".join(map(str, self._found))


Explain = Callable[[bool], ExplainedAnswer]


def predicted_program(one: Prediction, explain: Explain) -> Predicted:
    """Returns the row of a program."""
    return Predicted(
        one.name, one.device, one.latency_s, one.low_s, one.high_s, one.measured_s,
        one.out_of_distribution, () if one.reason is None else (one.reason,), detail=one,
        _row=one.to_json, _explain=explain,
    )  # fmt: skip


def predicted_record(one: Prediction) -> Predicted:
    """Returns the row of a record or sample."""
    return Predicted(
        one.name, one.device, one.latency_s, one.low_s, one.high_s, one.measured_s,
        one.out_of_distribution, detail=one, _row=one.of_record_json,
    )  # fmt: skip


def predicted_network(one: NetworkAnswer, explain: Explain | None) -> Predicted:
    """Returns the row of a network; None = it cannot be explained."""
    return Predicted(
        one.network, one.device, one.latency_s, one.low_s, one.high_s,
        out_of_distribution=bool(one.reasons), reasons=one.reasons, way=one.way, mode=one.mode,
        batch=one.batch, detail=one, _row=one.to_json, _explain=explain,
    )  # fmt: skip
