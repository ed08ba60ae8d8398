"""The packages that need TVM: records, modules, measuring, searching and the plug-ins.

Public names, each imported on first access: `Predictor`, `NetworkQuestion`, `network_answers`,
`CdmppCostModel`, `tune_tir` and `tune_relax` (current TVM), `CdmppPythonModel` (Ansor's TVM).
"""

from __future__ import annotations

from importlib import import_module
from typing import Any

_PLACES = {
    "CdmppCostModel": "cost_model.metaschedule",
    "CdmppPythonModel": "cost_model.ansor.model",
    "NetworkQuestion": "replay.ways",
    "Predictor": "predict.predictor",
    "network_answers": "replay.ways",
    "tune_relax": "cost_model.tune",
    "tune_tir": "cost_model.tune",
}


def __getattr__(name: str) -> Any:
    """Returns a public name and imports its module if necessary."""
    if name not in _PLACES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_PLACES[name]}"), name)


def __dir__() -> list[str]:
    return sorted([*globals(), *_PLACES])
