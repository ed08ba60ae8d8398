"""Trains on synthetic samples, alone or under torchrun, and saves the model; started by a test."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path

import numpy as np

from cdmpp.models.loop.distributed import is_first, process_group
from cdmpp.models.nets.options import LoopOptions, NetOptions
from cdmpp.models.options import TransformerOptions
from cdmpp.models.transformer import TransformerCostModel
from cdmpp.testing.synthetic import make_samples, split_by_task

#: No dropout: processes draw differently, so that their results would only be alike.
OPTIONS = TransformerOptions(
    network=NetOptions(hidden=32, layers=1, heads=2, feed_forward=32, head_hidden=32, dropout=0.0),
    # Batches of 7 programs: shares differ in size. The last batch of an epoch may be one program.
    loop=LoopOptions(epochs=4, programs_per_batch=7, programs_per_task=2, checkpoint_every=3),
)


def main(run_dir: Path, dropout: float = 0.0) -> None:
    train, validation, test = split_by_task(make_samples(12, 5))
    model = TransformerCostModel(
        replace(OPTIONS, network=replace(OPTIONS.network, dropout=dropout))
    )
    model.fit(train, validation, seed=5, run_dir=run_dir)
    if is_first():
        model.save(run_dir)
        np.save(run_dir / "predicted.npy", model.predict(test))


if __name__ == "__main__":
    with process_group("cpu"):
        main(Path(sys.argv[1]), float(sys.argv[2]))
