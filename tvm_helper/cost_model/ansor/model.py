"""cdmpp's cost model in Ansor: `auto_scheduler.SketchPolicy(task, CdmppPythonModel(...))`.

Needs a TVM that has `auto_scheduler`, in a separate environment (`make legacy-env`); start scripts
there with `python -m tvm_helper.cost_model.ansor.run SCRIPT`. The model itself runs in cdmpp's own
environment, see `client`.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from cdmpp.arrays import FloatArray
from cdmpp.errors import UsageError
from cdmpp.serve.client import Client
from tvm_helper.cost_model.ansor.client import AnsorClient
from tvm_helper.cost_model.ansor.served import ServedAnsor
from tvm_helper.cost_model.usage import Usage

try:
    import tvm
    from tvm.auto_scheduler import measure, measure_record
    from tvm.auto_scheduler.cost_model.cost_model import PythonBasedModel
except (ImportError, OSError) as error:
    if isinstance(error, OSError):
        _got = f"a TVM that does not load ({error})"
    else:
        _got = "no TVM" if error.name == "tvm" else f"TVM {tvm.__version__} without it"
    raise UsageError(
        f"Cannot use Ansor: got {_got}; expected a TVM with `auto_scheduler` (0.8 to 0.19). Build "
        "an environment that has one: python -m tvm_helper.legacy.setup; and run your script "
        "there: python -m tvm_helper.cost_model.ansor.run SCRIPT"
    ) from None


class CdmppPythonModel(PythonBasedModel):  # type: ignore[misc]
    """Scores Ansor's states by the latency that a trained model predicts for a device.

    A score is the shortest latency predicted for the task before this round, divided by the state's
    latency: positive, about 1 for the best, higher is better. A state that cannot be replayed, or
    that exceeds the limits of a GPU, gets -inf, which Ansor never measures, and is counted in
    `usage.unsupported`.

    Global random states are never read or set. An error in Ansor's calls ends the search, which
    raises it (a TVM without compiled bindings raises its own error with the same text).

    Args:
        model: a run folder, or `pretrained`.
        device: label of the measured device.
        finetune_every: 0 = frozen; n = after every n measured programs the weights are fine-tuned
            on all measured programs, and kept if they are better on held-out programs.
        neighbours: whether residuals on a task's measured programs correct predictions for its
            other states.
        seed: seed of the fine-tuning.
        server: URL of a `cdmpp serve` that scores, instead of a local process; then `model` is the
            name of the server's model, which is not fine-tuned, saved or loaded.
        token: token of the server.
        python: the interpreter that cdmpp is installed in; None = the one that ran
            `tvm_helper.cost_model.ansor.run`, or that of the checkout.

    Attributes:
        usage: counts of scored, measured and failed programs.

    Raises:
        UsageError: the process with the model does not start, or fine-tuning was requested of a
            served model.
        ServerError: the server does not respond.
        DeviceError: an unknown device.
        DataError: there is no complete model.
    """

    def __init__(
        self,
        model: Path | str,
        device: str,
        *,
        finetune_every: int = 0,
        neighbours: bool = True,
        seed: int = 0,
        server: str | None = None,
        token: str | None = None,
        python: Path | None = None,
    ) -> None:
        self.usage = Usage()
        self._tasks: set[str] = set()
        self._client: AnsorClient | ServedAnsor
        if server is not None:
            if finetune_every:
                raise UsageError("a served model cannot be fine-tuned; leave finetune_every at 0")
            self._client = ServedAnsor(Client(server, token=token), str(model), device)
            super().__init__()
            return
        options = [f"--model={model}", f"--device={device}"]
        options += [f"--finetune-every={finetune_every}", f"--seed={seed}"]
        options.append("--neighbours" if neighbours else "--no-neighbours")
        self._client = AnsorClient(options, python=python)
        super().__init__()

    def predict(self, task: Any, states: Sequence[Any]) -> FloatArray:
        """Returns float64 [state]: positive and higher is better, or -inf.

        Args:
            task: the `SearchTask` of the states.
            states: Ansor's states.
        """
        if len(states) == 0:
            return np.zeros(0)
        answer = self._client.ask("predict", name=self._told(task), lines=state_lines(task, states))
        self._note(answer)
        scores = [-np.inf if score is None else score for score in answer["scores"]]
        return np.array(scores, np.float64)

    def predict_stages(self, task: Any, states: Sequence[Any]) -> FloatArray:
        """Returns the scores in Ansor's packed form: those of the states, then one 0 per state.

        A 0 means that the score has no breakdown by stage: the model scores whole programs.

        Returns:
            float64 [2 * state].
        """
        return np.concatenate([self.predict(task, states), np.zeros(len(states))])

    def update(self, inputs: Sequence[Any], results: Sequence[Any]) -> None:
        """Adds measured programs; fine-tunes or corrects the model on them if enabled.

        Args:
            inputs: Ansor's `MeasureInput`s, of one or several tasks.
            results: their `MeasureResult`s.
        """
        lines: dict[str, list[str]] = {}
        for entry, result in zip(inputs, results, strict=True):
            lines.setdefault(self._told(entry.task), []).append(_dump(entry, result))
        for name, batch in lines.items():
            self._note(self._client.ask("update", name=name, lines=batch))

    def save(self, path: Path | str) -> None:
        """Writes everything that `load` needs into one file (tar, no pickle inside).

        Raises:
            DataError: it cannot be written.
        """
        self._client.ask("save", path=str(Path(path).resolve()))

    def load(self, path: Path | str) -> None:
        """Restores the state of the model that wrote the file; keeps this model's mode and seed.

        Raises:
            DataError: not a file of this kind.
        """
        self._client.ask("load", path=str(Path(path).resolve()))

    def close(self) -> None:
        """Ends the process with the model, which otherwise ends with this process."""
        self._client.close()

    def _told(self, task: Any) -> str:
        """Returns the name of a task; sends a new task to the model's process."""
        target = str(task.target)
        name = f"{task.workload_key}|{target.split()[0]}"
        if name not in self._tasks:
            dag = tvm.ir.save_json(task.compute_dag.tensors)
            self._client.ask("task", name=name, target=target, dag=dag)
            self._tasks.add(name)
        return name

    def _note(self, answer: dict[str, Any]) -> None:
        self.usage = Usage.from_json(answer["usage"])


def state_lines(task: Any, states: Iterable[Any]) -> list[str]:
    """Returns a line of a record file for each state of a task, without a measurement."""
    result = measure.MeasureResult([0.0], 0, "", 0, 0)
    return [_dump(measure.MeasureInput(task, state), result) for state in states]


def _dump(entry: Any, result: Any) -> str:
    return str(measure_record.dump_record_to_string(entry, result)).strip()


__all__ = ["CdmppPythonModel", "Usage", "state_lines"]
