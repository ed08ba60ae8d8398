"""Times of max-pooling, layout changes, 1x1 convolutions and gradients."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from cdmpp.analytic.conv.other_operators import (
    OtherOperators,
    TimedOperators,
    fit_operators,
    read_operators,
)
from cdmpp.analytic.conv.shapes import ConvShapes
from cdmpp.arrays import FloatArray
from cdmpp.cli.main import main
from cdmpp.errors import DataError, UsageError
from cdmpp.text import csv_text

DEVICE = "t4"


def layers(kernel: int) -> ConvShapes:
    rows = [(c, w, o) for c in (16, 48, 64, 96) for w in (14, 28, 56) for o in (40, 64, 256, 512)]
    cin, width, cout = (np.array(column) for column in zip(*rows, strict=True))
    return ConvShapes.of(32, cin, width, cout, kernel, 1, kernel // 2)


def truth(operator: str, shapes: ConvShapes) -> FloatArray:
    """Milliseconds, by the formulas."""
    data = shapes.batch * shapes.in_channels * shapes.in_width**2.0
    if operator == "maxpool":
        return 2e-8 * data * shapes.kernel + 1e-8 * data + 0.01
    if operator == "data_layout":
        return 4e-8 * data + 0.02
    forward = 1e-10 * data * shapes.out_channels * shapes.kernel**2 + 0.05
    return forward * {"conv_grad_input": 2.0, "conv_grad_filter": 0.5}.get(operator, 1.0)


OPERATORS = {
    "maxpool": 3, "data_layout": 1, "conv_forward": 3, "conv_grad_input": 3, "conv_grad_filter": 3,
    "conv_1x1": 1,
}  # fmt: skip


def tables() -> dict[str, TimedOperators]:
    return {
        operator: TimedOperators(layers(kernel), truth(operator, layers(kernel)))
        for operator, kernel in OPERATORS.items()
    }


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A table as `collect --operator` writes it."""
    rows = [
        {"operator": name, **table.shapes.row(row), "time_ms": float(table.time_ms[row])}
        for name, table in tables().items()
        for row in range(len(table.shapes))
    ]
    path = tmp_path_factory.mktemp("operators") / "measured.csv"
    path.write_text(csv_text(list(rows[0]), [list(row.values()) for row in rows]))
    return path


@pytest.fixture(scope="module")
def fitted(file: Path) -> OtherOperators:
    return fit_operators(read_operators([file]), DEVICE)


@pytest.mark.parametrize("operator", ["maxpool", "data_layout", "conv_grad_input"])
def test_the_formulas_come_back(fitted: OtherOperators, operator: str) -> None:
    shapes = ConvShapes.of(8, 128, 40, 128, OPERATORS[operator], 1, OPERATORS[operator] // 2)
    found = fitted.predict(operator, shapes, truth("conv_forward", shapes))
    assert found == pytest.approx(truth(operator, shapes), rel=1e-6)
    assert -1e-6 <= fitted.errors[operator].low <= 0 <= fitted.errors[operator].high <= 1e-6


def test_1x1_convolutions_have_two_formulas(fitted: OtherOperators) -> None:
    assert {"conv_1x1:narrow", "conv_1x1:wide"} <= set(fitted.fits)
    wide = ConvShapes.of(32, 64, 28, 384, 1)
    assert fitted.predict("conv_1x1", wide) == pytest.approx(truth("conv_1x1", wide), rel=1e-6)


def test_it_is_saved(fitted: OtherOperators, tmp_path: Path) -> None:
    fitted.save(tmp_path / "model.json")
    again = OtherOperators.load(tmp_path / "model.json")
    for operator, kernel in OPERATORS.items():
        if operator == "conv_forward":
            continue
        shapes = layers(kernel)
        forward_ms = np.ones(len(shapes))
        first = fitted.predict(operator, shapes, forward_ms)
        assert np.array_equal(again.predict(operator, shapes, forward_ms), first)
    assert again.errors.keys() == fitted.errors.keys()
    assert again.is_unmeasured("maxpool", layers(5)) == [True] * len(layers(5))


def test_a_gradient_needs_its_forward_convolution() -> None:
    own = tables()
    del own["conv_forward"]
    with pytest.raises(DataError, match=r"have no conv_forward.*batch 32.*--operator conv_grad"):
        fit_operators(own, DEVICE)
    with pytest.raises(DataError, match="unknown operator 'relu'; expected maxpool"):
        fit_operators({"relu": own["maxpool"]}, DEVICE)
    with pytest.raises(UsageError, match="'maxpool' of such layers was not fitted on t4"):
        OtherOperators(DEVICE, {}, {}).predict("maxpool", layers(3))


def run(capsys: pytest.CaptureFixture[str], *words: str, code: int = 0) -> str:
    assert main(["analytic", "conv", *words]) == code
    captured = capsys.readouterr()
    return captured.out if code == 0 else captured.err


def test_fit_and_predict(file: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Was: they could be measured and never fitted."""
    model = str(tmp_path / "operators.json")
    fit = ("fit", "--operators", str(file), "--out", model)
    assert "no device: give --device" in run(capsys, *fit, code=2)
    summary = json.loads(run(capsys, *fit, "--device", DEVICE, "--json"))
    assert summary["rmspe"]["maxpool"] < 1e-6
    layer = ("--layer", "32,64,56,128,3,1,1")
    asked = ("predict", "--model", model, *layer, "--operator")
    value = json.loads(run(capsys, *asked, "maxpool", "--json"))
    shapes = ConvShapes.of(32, 64, 56, 128, 3, 1, 1)
    assert value["total_ms"] == pytest.approx(truth("maxpool", shapes)[0])
    assert value["total_low_ms"] <= value["total_ms"] <= value["total_high_ms"]
    forward = json.loads(run(capsys, "predict", *layer, "--device", DEVICE, "--json"))
    gradient = json.loads(run(capsys, *asked, "conv_grad_input", "--json"))
    for end in ("total_ms", "total_low_ms", "total_high_ms"):
        assert gradient[end] == pytest.approx(2.0 * forward[end], rel=1e-3)
    text = run(capsys, *asked, "maxpool")
    assert "interval from: 90 % of" in text
    assert "no measured filter has this width and stride" in run(
        capsys, "predict", "--model", model, "--layer", "32,64,56,64,5", "--operator", "maxpool"
    )
    assert "was fitted on 't4'" in run(capsys, *asked, "maxpool", "--device", "v100", code=2)
    packaged = ("predict", *layer, "--operator", "maxpool")
    assert "conv fit --operators CSV" in run(capsys, *packaged, code=2)
