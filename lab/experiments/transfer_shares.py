"""Adds to the packaged model what a time on one device says of another."""

from __future__ import annotations

from pathlib import Path

from cdmpp.calibration.transfer import Transfer, fit_transfer
from cdmpp.datasets.cache import load_samples
from cdmpp.datasets.sources import extracted_folder
from cdmpp.datasets.splits import split
from cdmpp.predict.saved_model import load_model, write_transfer
from cdmpp.pretrained import PRETRAINED, model_folder
from lab.paths import ROOT


def experiment(cache: Path = ROOT / "cache") -> None:
    """Adds to the packaged model what its validation tasks of the shipped data sets say of two
    devices; of a relation the last set that has it.
    """
    folder = model_folder(PRETRAINED)
    model, card = load_model(folder)
    fractions = tuple(card.split["fractions"])
    assert len(fractions) == 3
    whole = Transfer({}, {})
    for name in ("tenset-cpu", "ansor-gpu"):
        samples = load_samples(extracted_folder(ROOT / "data" / name, None, cache_dir=cache))
        parts = split(samples, "task", seed=card.split["seed"], fractions=fractions)
        validation = samples.take(parts.validation)
        found = fit_transfer(validation, model.predict(validation)) or Transfer({}, {})
        whole = Transfer(whole.shares | found.shares, whole.intervals | found.intervals)
    write_transfer(folder, whole)
