"""Learning curve of a new device's model over the number of measured tasks: text, page, plot."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from cdmpp.report.page import Page, Section
from cdmpp.report.tables import plain_table
from cdmpp.text import aligned, counted, percent_text
from cdmpp.training.finetune.choice import SAYS

#: Key of a starting model in `curve.json` -> heading.
STARTS = {
    "pretrained": "pre-trained start",
    "one_factor": "one factor",
    "scratch": "from scratch",
    "trees": "trees from scratch",
}
#: Starts for which the table has only the MAPE.
_BRIEF = ("scratch", "trees")


#: Errors and ratios from this factor are printed as `> ...`.
_BEYOND = 100.0
#: Maximum error in the plot; the errors of a few useless starts would hide all others.
_MOST_DRAWN = 10.0


def curve_text(curve: Mapping[str, Any]) -> str:
    """Returns the table of a curve with the measurements, the knee and the durations, as text.

    Args:
        curve: content of `curve.json` in a device's run folder.
    """
    rows = [["tasks", *STARTS.values()], *_rows(curve)]
    return f"{_heading(curve)}\n\n{aligned(rows, 'r')}\n\n" + "\n".join(_sentences(curve))


def curve_page(curve: Mapping[str, Any], *, command: str, plot: str | None = None) -> Page:
    """Returns the page of a curve.

    Args:
        command: command that made the page.
        plot: file name of the plot in the page's folder; None = no plot.
    """
    titles = ["measured tasks", *STARTS.values()]
    spec = [
        [name, _value(entry["value"]), entry["source"]] for name, entry in curve["spec"].items()
    ]
    picture = f"\n\n![error against measured tasks]({plot})" if plot else ""
    made = f"cdmpp device add {curve['device']} --minutes {curve['minutes']:g}"
    return Page(
        title=f"Adding a device: {curve['device']}",
        lead=f"Written by `{made}`.",
        sections=[
            Section(
                "Error against measured tasks",
                _heading(curve) + picture,
                points=_sentences(curve),
                tables=[plain_table(titles, _rows(curve))],
            ),
            Section("The machine", tables=[plain_table(["value", "", "source"], spec)]),
        ],
        command=command,
        facts=[(k, str(v)) for k, v in {**curve["machine"], **curve["versions"]}.items()],
    )


def curve_svg(curve: Mapping[str, Any]) -> str:
    """Returns a plot of the MAPE against the number of measured tasks, with the knee."""
    from cdmpp.report.plots import AXIS, COLOURS, Mark, legend, log_scale, new_figure, svg_text

    figure, axes = new_figure()
    marks = []
    for (start, title), colour in zip(STARTS.items(), COLOURS, strict=False):
        known = [(row["tasks"], row[start]) for row in curve["rows"] if row.get(start)]
        if not known:
            continue
        counts = [count for count, _ in known]
        marks += [
            Mark(f"{title}, {counted(count, 'task')}\nMAPE {_cell(value, is_brief=True)}",
                 count, 100 * value["mape"]) for count, value in known
            if value["mape"] <= _MOST_DRAWN
        ]  # fmt: skip
        axes.plot(counts, [100 * value["mape"] for _, value in known], "o-", ms=3.5, lw=1.4,
                  color=colour, label=title)  # fmt: skip
        axes.fill_between(
            counts, [100 * value["mape_low"] for _, value in known],
            [100 * value["mape_high"] for _, value in known], color=colour, alpha=0.08, lw=0,
        )  # fmt: skip
    knee = curve["knee"]["tasks"]
    if knee is not None:
        axes.axvline(knee, color=AXIS, lw=0.9, ls="--")
    counts = [row["tasks"] for row in curve["rows"]]
    axes.set_xscale("symlog", linthresh=1)
    # Without the number of a tick that the next one would touch.
    ticks = zip(counts, [*counts[1:], math.inf], strict=True)
    axes.set_xticks(counts, [str(count) if 2 * count <= after else "" for count, after in ticks])
    axes.set_xlim(0, counts[-1] * 1.1)
    means = [row[start]["mape"] for row in curve["rows"] for start in STARTS if row.get(start)]
    is_cut = min(means) < _MOST_DRAWN < max(means)
    log_scale(axes, "y")
    if is_cut:
        axes.set_ylim(top=100 * _MOST_DRAWN)
    axes.set_xlabel("measured tasks")
    cut = f", cut at {100 * _MOST_DRAWN:.0f} %" if is_cut else ""
    axes.set_ylabel(f"MAPE on the test tasks (%{cut})")
    legend(axes, ncols=2, loc="lower left", bbox_to_anchor=(0.0, 1.0))
    return svg_text(figure, marks)


def _rows(curve: Mapping[str, Any]) -> list[list[str]]:
    return [
        [str(row["tasks"]), *(_cell(row.get(start), is_brief=start in _BRIEF) for start in STARTS)]
        for row in curve["rows"]
    ]


def _cell(values: Mapping[str, Any] | None, *, is_brief: bool = False) -> str:
    if values is None:
        return "-"
    mape = (
        f"{_percent(values['mape'])} [{_percent(values['mape_low'])}, "
        f"{_percent(values['mape_high'])}]"
    )
    if is_brief:
        return mape
    rank, log_error = values["spearman_by_task"], values.get("mean_log_error")
    low = "" if log_error is None else f"{log_error:.2f} / {_factor(values['median_ratio'])} / "
    return (
        f"{mape} / {_percent(values['median_ape'])} / {low}{'-' if rank is None else f'{rank:.2f}'}"
    )


def _factor(value: float) -> str:
    return f"{value:.2f}" if value < _BEYOND else f"> {_BEYOND:.0f}"


def _percent(fraction: float) -> str:
    """Returns a fraction in percent; `> 10000 %` for a huge one, such as an overflow."""
    return percent_text(fraction, 0) if fraction < _BEYOND else f"> {percent_text(_BEYOND, 0)}"


def _heading(curve: Mapping[str, Any]) -> str:
    test = curve["measured"]["test"]
    return (
        f"Error on {counted(test['programs'], 'program')} of "
        f"{counted(test['tasks'], 'unseen task')}, by number of "
        "measured tasks: MAPE [95 % interval over tasks] / median APE / mean log error / median "
        "of predicted over measured / Spearman within a task. - = not computed."
    )


def _sentences(curve: Mapping[str, Any]) -> list[str]:
    learn, oracle, seconds = curve["measured"]["learn"], curve["oracle"], curve["seconds"]
    measured = (
        f"{counted(learn['programs'], 'program')} of {counted(learn['tasks'], 'task')} were "
        "measured for training"
    )
    if oracle:
        measured += (
            f"; an oracle that knows each task's median has an error of {100 * oracle['mape']:.0f} "
            f"% / {100 * oracle['median_ape']:.0f} %"
        )
    found = [f"{measured}.", _knee_sentence(curve)]
    finals = [d for d in curve.get("details", []) if d["start"] == "pretrained" and "why" in d]
    if finals:
        final = max(finals, key=lambda detail: detail["tasks"])
        found.append(
            f"Selected from the pre-trained model: {SAYS[final['kept']]} ({final['why']})."
        )
    if curve.get("compiled"):
        found.append(
            "With the machine code of the programs (`cdmpp predict --machine-code`): "
            f"{_cell(curve['compiled'])}."
        )
    interval = curve["interval"]
    if interval["coverage"] is not None:
        found.append(
            f"{100 * interval['nominal']:.0f} % intervals contain "
            f"{100 * interval['coverage']:.0f} % of the programs of a test task (mean over "
            "tasks)."
        )
    found += [f"Doubtful: {doubt}." for doubt in curve["doubts"]]
    named = {"probe": "probe", "choose": "choice of tasks", "measure": "measuring", "fit": "fits"}
    parts = ", ".join(
        f"{title} {seconds[name]:.0f} s" for name, title in named.items() if name in seconds
    )
    found.append(f"{seconds['total'] / 60:.1f} minutes in all of {curve['minutes']:g}: {parts}.")
    return found


def _knee_sentence(curve: Mapping[str, Any]) -> str:
    knee, rule = curve["knee"]["tasks"], curve["knee"]["rule"]
    if knee is None:
        return f"No knee: the curve has too few points ({rule})."
    last = curve["rows"][-1]["tasks"]
    if knee == 0:
        advice = "no number of measured tasks reduced the error"
    elif knee == last:
        advice = "the error still falls there, more minutes may help"
    else:
        advice = "more tasks have little effect"
    return f"Knee at {counted(knee, 'task')}; {advice} ({rule})."


def _value(value: Any) -> str:
    return f"{value:.6g}" if isinstance(value, float) else str(value)
