"""Pages of the analytic models, written by the commands that evaluate them."""

from __future__ import annotations

from pathlib import Path

from lab.pages import keep
from lab.paths import RESULTS, ROOT, SHARED_DATA
from lab.shell import cdmpp


def operators(neusight: Path = SHARED_DATA / "neusight") -> None:
    """Fits the operator model on NeuSight's training tables and evaluates it beside its peers."""
    model = ROOT / "runs" / "operators.json"
    cdmpp("analytic operator fit", data=neusight / "train", out=model)
    cdmpp("analytic operator evaluate", data=neusight, model=model, out=RESULTS)
    keep("operators")


def gpu_kernels(data: Path = ROOT / "data" / "gpu-kernels") -> None:
    """Evaluates the kernel models on devices left out, new shapes and larger ones."""
    cdmpp("analytic kernels evaluate", data=data, out=RESULTS)
    keep("gpu-kernels")


def embedding(data: Path = ROOT / "data" / "embedding-cpu") -> None:
    """Evaluates the embedding models on a campaign."""
    cdmpp("analytic embedding report", data=data, out=RESULTS)
    keep("embedding")
