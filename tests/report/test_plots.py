"""Plots of the reports as SVG text."""

from __future__ import annotations

import re

import numpy as np
import pytest

from cdmpp.report.device_curve import curve_svg
from cdmpp.report.plots import error_by_latency, log_scale, new_figure, svg_text


@pytest.mark.parametrize(
    ("limits", "labels"),
    [
        ((1e-4, 1e-2), ["10⁻⁴", "10⁻³", "10⁻²"]),
        ((1.0, 1000.0), ["1", "10", "100", "1000"]),
        ((2e-5, 9e-5), ["2·10⁻⁵", "3·10⁻⁵", "4·10⁻⁵", "6·10⁻⁵"]),
    ],
)
def test_labels_of_logarithmic_axes_are_plain_text(limits, labels):
    figure, axes = new_figure(3, 3)
    log_scale(axes, "x")
    axes.set_xlim(*limits)
    axes.set_yticks([])
    text = svg_text(figure)
    assert [label for label in labels if f">{label}</text>" not in text] == []
    assert "mathdefault" not in text


def test_the_same_data_gives_the_same_bytes():
    measured_s = np.geomspace(1e-5, 1e-3, 40)
    errors = {"transformer": np.linspace(0.01, 0.4, 40)}
    assert error_by_latency(measured_s, errors) == error_by_latency(measured_s, errors)


@pytest.mark.parametrize(("worst", "is_cut"), [(1e5, True), (3.0, False)])
def test_a_useless_start_does_not_hide_the_others(worst, is_cut):
    def row(tasks, scratch):
        return {
            "tasks": tasks,
            "pretrained": {"mape": 0.5, "mape_low": 0.4, "mape_high": 0.6},
            "scratch": scratch and {"mape": worst, "mape_low": worst / 2, "mape_high": 2 * worst},
        }

    rows = [row(0, None), row(1, True), row(37, True), row(49, True)]
    svg = curve_svg({"rows": rows, "knee": {"tasks": None}})
    assert ">49<" in svg
    assert ">37<" not in svg  # the numbers would touch
    assert (">1000<" in svg) == is_cut
    assert ("cut at 1000 %" in svg) == is_cut
    assert ">10⁴<" not in svg
    frame, key = svg.split('<g id="legend_1">')
    top = min(float(y) for y in re.findall(r'<use [^>]* y="([0-9.]+)"', frame))
    named = [float(y) for y in re.findall(r'<text [^>]* y="([0-9.]+)"', key)]
    assert named
    assert max(named) < top  # the legend is above the curves
