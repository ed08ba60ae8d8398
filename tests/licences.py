"""Under which licences the packages are that the product needs: docs/licences.md.

python -m tests.licences    # from the metadata of what is installed; a line of the page stays where
                            # its package is not
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterator
from importlib.metadata import Distribution, PackageNotFoundError, distribution
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from cdmpp.files.atomic import write_text
from cdmpp.text import markdown_table, shortened
from tests.paths import ROOT

PAGE = ROOT / "docs" / "licences.md"
_OSI = "License :: OSI Approved :: "
_WIDTH = 60
_HEAD = """# Licences

The product is under Apache-2.0 (`LICENSE`). The packages that it needs, directly or through others,
and their licences as their metadata say; written by `make licences`. Shipped models and data have
theirs in `cdmpp/pretrained/**/card.json` and in `data/*/README.md`, records by name in
`cdmpp/datasets/fetch/sources.yaml`. PyPI's torch for Linux also brings triton (MIT) and NVIDIA's
CUDA libraries, which are under NVIDIA's own licences; `locks/torch-pypi.lock` names them, and a CPU
build of torch needs none. Those of the JavaScript libraries in the page of `cdmpp serve` are in
`cdmpp/serve/page/vendor/LICENCES.txt`.

"""


def requirements() -> list[tuple[Requirement, str]]:
    """Returns what pyproject.toml requires, and the extra or group that does."""
    about = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))
    extras = about["project"]["optional-dependencies"]
    tables = {
        "`cdmpp`": about["project"]["dependencies"],
        **{f"`cdmpp[{name}]`": lines for name, lines in extras.items()},
        **{f"group `{name}`": lines for name, lines in about["dependency-groups"].items()},
    }
    return [(Requirement(line), name) for name, lines in tables.items() for line in lines]


def needed() -> dict[str, set[str]]:
    """Returns all packages that are needed, and the extras, groups or packages that need them."""
    found: dict[str, set[str]] = {}
    waiting = requirements()
    seen = set()
    while waiting:
        requirement, asking = waiting.pop()
        name = canonicalize_name(requirement.name)
        found.setdefault(name, set()).add(asking)
        for extra in ("", *requirement.extras):
            if (name, extra) not in seen:
                seen.add((name, extra))
                waiting += [(one, name) for one in _asked_by(name, extra)]
    direct = {canonicalize_name(one.name) for one, _ in requirements()}
    return {
        name: {one for one in asking if "`" in one} if name in direct else asking
        for name, asking in found.items()
    }


def _asked_by(name: str, extra: str) -> Iterator[Requirement]:
    about = _distribution(name)
    for text in (about.requires if about else None) or ():
        requirement = Requirement(text)
        if requirement.marker is None or requirement.marker.evaluate({"extra": extra}):
            yield requirement


def _distribution(name: str) -> Distribution | None:
    try:
        return distribution(name)
    except PackageNotFoundError:
        return None


def licence(about: Distribution) -> str:
    """Returns a package's licence as its metadata say."""
    if expression := about.metadata.get("License-Expression"):
        return expression
    classes = [line for line in about.metadata.get_all("Classifier") or () if _OSI in line]
    if classes:
        return ", ".join(sorted(line.removeprefix(_OSI) for line in classes))
    text = (about.metadata.get("License") or "").strip().partition("\n")[0]
    return shortened(text, _WIDTH) if text else "not said"


def listed(page: Path = PAGE) -> dict[str, list[str]]:
    """Returns the rows of the page by package."""
    lines = page.read_text("utf-8").splitlines() if page.is_file() else []
    rows = ([cell.strip() for cell in line.strip("|").split("|")] for line in lines)
    found = {row[0]: row for row in rows if len(row) == 4 and re.fullmatch(r"\w[\w-]*", row[0])}
    found.pop("package", None)  # the head of the table
    return found


def page() -> str:
    """Returns the page."""
    rows = listed()
    for name, asking in needed().items():
        if about := _distribution(name):
            rows[name] = [name, about.version, licence(about), ", ".join(sorted(asking))]
        elif name not in rows:
            rows[name] = [
                name,
                "-",
                "not installed where this was written",
                ", ".join(sorted(asking)),
            ]
    heads = ["package", "version", "licence", "needed by"]
    return _HEAD + markdown_table(heads, [rows[name] for name in sorted(rows)]) + "\n"


if __name__ == "__main__":
    write_text(PAGE, page())
