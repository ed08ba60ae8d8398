"""What the documentation site adds to the pages of docs/: navigation, commands, Python, drawings.

The navigation is docs/README.md: its headings are the sections, its lists the pages. Commands come
from the parsers, Python from the modules that the guides import; none of that is committed. The
search has no results and no lab; `search.yaml` has words that it knows besides those of a page.
"""

from __future__ import annotations

import os
import re
from functools import cache
from pathlib import Path
from typing import Any

import yaml
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

ROOT = Path(__file__).resolve().parents[2]
DOCS = ROOT / "docs"
#: Pages of the repository's top folder, and what they are called here.
TOP = {
    "README.md": "start.md",
    "CHANGELOG.md": "changelog.md",
    "CONTRIBUTING.md": "contributing.md",
}

#: Those of them at the end of the reference.
TOP_LAST = ("contributing.md", "changelog.md")

#: Pages that the search leaves out.
NOT_SEARCHED = (
    "results/",
    "lab/",
    "changelog.md",
    "contributing.md",
    "code-structure.md",
    "licences.md",
)

_HEADING = re.compile(r"^## (.+)$", re.MULTILINE)
_GROUP = re.compile(r"^### (.+)$", re.MULTILINE)
_ENTRY = re.compile(r"^- \[([^]]+)\]\(([^)]+\.md)\)", re.MULTILINE)
_NAMED_PAGE = re.compile(r"`docs/([\w/-]+\.md)`")
_OUTSIDE = re.compile(r"\[([^]]*)\]\(((?:\.\./)+[^)\s#]+)\)")
_TIGHT_LIST = re.compile(r"^(?![-*\d|#> ])(.+)\n(?=(?:[-*]|\d+\.) )", re.MULTILINE)
_IMPORT = re.compile(r"^(?:from|import) ((?:cdmpp|tvm_helper)[\w.]*)", re.MULTILINE)


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """Makes the navigation."""
    config.nav = navigation()
    return config


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Adds the pages that are made here."""
    for name, text in {**top_pages(), **command_pages(), **python_pages()}.items():
        files.append(File.generated(config, name, content=text))
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Returns the text of a page with its links out of docs/ put right, the pages that it names
    linked, and lists that begin without a blank line; tells the search about the page.
    """
    name = page.file.src_uri
    page.meta["search"] = {
        "exclude": name.startswith(NOT_SEARCHED),
        "boost": next((n for start, n in _search("boosts").items() if name.startswith(start)), 1),
    }
    page.meta["tags"] = _search("keywords").get(name, [])
    up = "../" * page.file.src_uri.count("/")
    parts = re.split(r"(^```.*?^```$)", markdown, flags=re.MULTILINE | re.DOTALL)
    for number in range(0, len(parts), 2):
        text = _OUTSIDE.sub(lambda found: _inside(found[1], found[2], up), parts[number])
        text = _NAMED_PAGE.sub(lambda found: _link(found[1], up), text)
        parts[number] = _TIGHT_LIST.sub(r"\1\n\n", text)
    return "".join(parts)


def _inside(text: str, target: str, up: str) -> str:
    """Returns a link to a page of the top folder as one inside the site; of another file out of
    docs/, its words.
    """
    if target.count("../") <= up.count("../"):
        return f"[{text}]({target})"  # within docs/
    here = TOP.get(target.rsplit("../", 1)[-1])
    return f"[{text}]({up}{here})" if here else text


def _link(page: str, up: str) -> str:
    return f"[{page}]({up}{page})" if (DOCS / page).is_file() else f"`docs/{page}`"


@cache
def _search(part: str) -> dict[str, Any]:
    return dict(yaml.safe_load((DOCS / "site" / "search.yaml").read_text("utf-8"))[part])


def navigation() -> list[Any]:
    """Returns the sections with their pages; a page is where it is named first."""
    text = (DOCS / "README.md").read_text("utf-8")
    _, *parts = _HEADING.split(text)
    sections = dict(zip(parts[::2], map(_entries, parts[1::2]), strict=True))
    sections["Reference"] += [
        {"Commands": sorted(command_pages())},
        {"Python modules": sorted(python_pages())},
        *TOP_LAST,
    ]
    named = {page for one in sections["Results"] for page in one.values()}
    sections["Results"] += sorted(
        page.relative_to(DOCS).as_posix()
        for page in (DOCS / "results").glob("*.md")
        if f"results/{page.name}" not in named
    )
    first = ["README.md", {"Install and first result": "start.md"}]
    return [{"Start here": first}, *({name: pages} for name, pages in sections.items())]


def _entries(part: str) -> list[Any]:
    """Returns the listed pages of a section by title, those below a smaller heading as a group."""
    own, *groups = _GROUP.split(part)
    pages: list[Any] = [{title: page} for title, page in _ENTRY.findall(own)]
    named = zip(groups[::2], groups[1::2], strict=True)
    return pages + [{name: _entries(text)} for name, text in named]


def top_pages() -> dict[str, str]:
    """Returns the pages of the top folder, with their links as seen from docs/."""
    texts = {here: (ROOT / name).read_text("utf-8") for name, here in TOP.items()}
    return {
        here: re.sub(
            r"\]\((?!https?:|#)(?:docs/)?", lambda m: "](" if "docs/" in m[0] else "](../", text
        )
        for here, text in texts.items()
    }


def command_pages() -> dict[str, str]:
    """Returns a page for each command: what `--help` prints of it and of its parts."""
    from cdmpp.cli.commands import filled
    from cdmpp.cli.main import build_parser

    os.environ["COLUMNS"] = "80"
    pages: dict[str, str] = {}
    for parser in filled(build_parser())[1:]:
        words = parser.prog.removeprefix("cdmpp ")
        name = f"commands/{words.split()[0]}.md"
        title = f"{'##' if name in pages else '#'} {parser.prog}"
        text = f"{title}\n\n```text\n{parser.format_help().rstrip()}\n```\n"
        pages[name] = "\n".join([pages[name], text] if name in pages else [text])
    return pages


def python_pages() -> dict[str, str]:
    """Returns a page for each package that the guides import from: its modules' docstrings."""
    modules = {"cdmpp", "cdmpp.models.base", "cdmpp.records", "cdmpp.errors", "tvm_helper"}
    for page in [ROOT / "README.md", *DOCS.rglob("*.md")]:
        modules |= set(_IMPORT.findall(page.read_text("utf-8")))
    for folder in ("api", "testing"):
        modules |= {
            f"cdmpp.{folder}.{path.stem}" for path in (ROOT / "cdmpp" / folder).glob("[!_]*.py")
        }
    pages: dict[str, str] = {}
    for module in sorted(modules):
        package = ".".join(module.split(".")[:2])
        name = f"python/{package.replace('.', '-')}.md"
        pages[name] = f"{pages.get(name, f'# {package}')}\n\n::: {module}\n"
    return pages
