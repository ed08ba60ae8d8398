"""One self-contained HTML page: no scripts, no links, plots inline."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from cdmpp.files.places import package_folder
from cdmpp.report.tables import COLUMNS, Group

#: What the rows and columns mean; shown on every page.
NOTES = (
    "Every program was judged once, by a model that saw neither it nor any other program of its "
    "task "
    "(unless a warning above says otherwise).",
    "APE is |predicted - measured| / measured. MAPE is its mean, which a few tiny operators can "
    "dominate; the median APE is the typical error. Look at both.",
    "Spearman is the rank correlation of predicted and measured latency among the programs of one "
    "task on one device, averaged over tasks with at least four programs.",
    "top-k is the summed latency of the best programs over that of the best among the k predicted "
    "fastest, weighted by how often the networks call each task; 1 is perfect.",
    "constant: median latency of the training part on that device. roofline: max(operations / "
    "peak, "
    "bytes / bandwidth) times one factor per device. gbdt: gradient-boosted trees on pooled "
    "leaf features.",
    "oracle looks at the answers: it knows each test task's median latency on the device, and "
    "nothing "
    "of its schedules. It is out of competition.",
    "The best value of a column is coloured, the oracle aside.",
)


@dataclass(frozen=True)
class Page:
    """What a report page shows.

    Attributes:
        title: heading.
        lead: one sentence below it.
        warnings: sentences that limit what the numbers mean.
        tiles: (big text, what it is) of the few most important numbers.
        table_title: heading of the table.
        table_note: sentence above the table: split, n, devices, seeds.
        groups: the table, one group a device.
        plots: (caption, SVG).
        command: the command that made this.
        facts: (name, value) pairs: data hash, versions, machine.
    """

    title: str
    lead: str
    warnings: Sequence[str]
    tiles: Sequence[tuple[str, str]]
    table_title: str
    table_note: str
    groups: Sequence[Group]
    plots: Sequence[tuple[str, str]]
    command: str
    facts: Sequence[tuple[str, str]]


def render_page(page: Page) -> str:
    """Returns the HTML text."""
    from jinja2 import Environment, FileSystemLoader, StrictUndefined

    environment = Environment(
        loader=FileSystemLoader(package_folder("cdmpp.report")),
        autoescape=True,
        undefined=StrictUndefined,
    )
    return environment.get_template("page.html").render(
        title=page.title,
        lead=page.lead,
        warnings=page.warnings,
        tiles=page.tiles,
        table_title=page.table_title,
        table_note=page.table_note,
        columns=COLUMNS,
        groups=page.groups,
        plots=page.plots,
        notes=NOTES,
        command=page.command,
        facts=page.facts,
    )
