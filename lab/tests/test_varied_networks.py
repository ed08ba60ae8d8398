"""Random networks that campaigns measure."""

from __future__ import annotations

from pathlib import Path

import torch

from lab.experiments import varied_networks


def test_products_are_single_layers_that_unscheduled_loops_run_in_a_second(tmp_path: Path) -> None:
    varied_networks.experiment(tmp_path, count=0, seed=3, products=4)
    files = sorted(tmp_path.glob("product-*.pt2"))
    assert len(files) == 4
    sizes = set()
    for file in files:
        program = torch.export.load(file)
        outputs, inputs = program.state_dict["0.weight"].shape
        ((rows, width),) = [one.shape for one in program.example_inputs[0]]
        assert width == inputs
        assert rows * inputs * outputs < 1.5e8
        sizes.add((rows, inputs, outputs))
    assert len(sizes) == 4


def test_products_have_the_widths_asked_for(tmp_path: Path) -> None:
    varied_networks.experiment(tmp_path, count=0, seed=3, products=4, widths=(48, 80))
    files = sorted(tmp_path.glob("product-*.pt2"))
    assert len(files) == 4
    for file in files:
        assert set(torch.export.load(file).state_dict["0.weight"].shape) <= {48, 80}
