"""Everything that needs TVM: reading records and modules, measuring, searching, the plug-ins.

These names are for other code; each loads its module when it is asked for: `Predictor`,
`NetworkQuestion`, `network_answers`, `CdmppCostModel`, `tune_tir` and `tune_relax` with today's
TVM, `CdmppPythonModel` with Ansor's.
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
    """Returns a public name of a module that need not be loaded before."""
    if name not in _PLACES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_PLACES[name]}"), name)


def __dir__() -> list[str]:
    return sorted([*globals(), *_PLACES])
