"""cdmpp predicts how long a tensor program takes on a device without running it.

>>> import cdmpp
>>> model = cdmpp.load("pretrained")
>>> "epyc-avx512-1c" in model.devices
True

`docs/reference/python.md` explains every name. A name loads its module on first access, so
`import cdmpp` takes milliseconds. `__init__.pyi` has the types.
"""

from importlib import import_module
from typing import Any

from cdmpp.errors import speak_python

__version__ = "0.2.0"

#: Public name -> its module; "" for the subpackages `devices` and `testing`.
_PLACES = {
    "CdmppError": "errors",
    "Comparison": "api.compare",
    "Dataset": "api.dataset",
    "ExplainedAnswer": "predict.explained",
    "LoadComparison": "api.compare",
    "Model": "api.model",
    "Predicted": "api.predictions",
    "Predictions": "api.predictions",
    "Runs": "api.runs",
    "Search": "api.measuring",
    "compare": "api.compare",
    "devices": "",
    "finetune": "api.train",
    "load": "api.model",
    "measure": "api.measuring",
    "runs": "api.runs",
    "search": "api.measuring",
    "testing": "",
    "train": "api.train",
}


__all__ = sorted(["__version__", *_PLACES])


def __getattr__(name: str) -> Any:
    """Returns a public name and loads its module if needed."""
    if name not in _PLACES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    place = _PLACES[name]
    speak_python()
    return (
        getattr(import_module(f"cdmpp.{place}"), name) if place else import_module(f"cdmpp.{name}")
    )


def __dir__() -> list[str]:
    return sorted([*globals(), *_PLACES])
