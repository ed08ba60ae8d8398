"""Tunes every baseline by random search on validation parts; stores the best in configs/models."""

from __future__ import annotations

import shutil

from lab.paths import ROOT
from lab.shell import cdmpp

KINDS = ("gbdt", "gbdt-rank", "segment-mlp", "tlp", "tlp-rank", "recursive-lstm", "cdmpp-paper")


def experiment(kinds: tuple[str, ...] = KINDS, minutes: int = 10, dataset: str = "") -> None:
    """Tunes the given kinds.

    Args:
        minutes: CPU minutes per kind.
        dataset: value of `--dataset`; empty for the shipped one.
    """
    for kind in kinds:
        preset = ROOT / "configs" / "models" / f"{kind}.yaml"
        out = ROOT / "runs" / f"tune-{kind}"
        settings = [f"name={kind}", f"cpu_minutes={minutes}", f"presets=[{preset}]"]
        if "rank" in kind:
            settings += ["objective.kind=error-and-order", "objective.order_weight=100"]
        if not kind.startswith("gbdt"):
            settings.append(f"trial_settings=[{kind.replace('-', '_')}.loop.cpu_seconds=60]")
        cdmpp(
            "autotune", model=kind, sampler="random", pruner="none", trials=400, no_train=True,
            set=settings, out=out, dataset=dataset or None,
        )  # fmt: skip
        shutil.copy(out / "best.yaml", preset)
