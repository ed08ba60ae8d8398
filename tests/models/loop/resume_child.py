"""Trains on synthetic samples and saves the model; started by the resume test, which kills it."""

from __future__ import annotations

import sys
from pathlib import Path

from cdmpp.models.nets.options import LoopOptions, NetOptions
from cdmpp.models.options import TransformerOptions
from cdmpp.models.transformer import TransformerCostModel
from cdmpp.testing.synthetic import make_samples, split_by_task

OPTIONS = TransformerOptions(
    network=NetOptions(hidden=32, layers=1, heads=2, feed_forward=32, head_hidden=32),
    loop=LoopOptions(epochs=5, programs_per_batch=4, programs_per_task=2, checkpoint_every=3),
)


def main(run_dir: Path) -> None:
    train, validation, _ = split_by_task(make_samples(10, 6))
    model = TransformerCostModel(OPTIONS)
    model.fit(train, validation, seed=5, run_dir=run_dir)
    model.save(run_dir)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
    # Two seconds and 70 MB that training has no use for.
    assert "torch._dynamo" not in sys.modules, "training imported torch's compiler"
