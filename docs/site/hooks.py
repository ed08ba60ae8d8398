"""What the documentation site adds to the pages of docs/: navigation, commands, Python, drawings.

The navigation is docs/README.md: its headings are the sections, its links the pages. Commands come
from the parsers, Python from the modules that the guides import; none of that is committed.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

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

_HEADING = re.compile(r"^## (.+)$", re.MULTILINE)
_ROW = re.compile(r"^\| (?!I want|---)([^|]+) \| ([^|]+) \|", re.MULTILINE)
_LINK = re.compile(r"\]\(((?!https?:|#)[^)#\s]+\.md)")
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
    linked, and lists that begin without a blank line.
    """
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


def navigation() -> list[Any]:
    """Returns the sections with their pages; a page is where it is named first, what the
    introduction names last.
    """
    text = (DOCS / "README.md").read_text("utf-8")
    introduction, *parts = _HEADING.split(text)
    sections = dict(zip(parts[::2], parts[1::2], strict=True))
    seen: set[str] = set()
    nav: dict[str, list[Any]] = {"Start here": []}  # the first tab, filled last
    for name, part in sections.items():
        nav[name] = list(
            _questions(part, seen) if name == "Guides" else _new(_pages_in(part), seen)
        )
    nav["Reference"] += [
        {"Commands": sorted(command_pages())},
        {"Python": sorted(python_pages())},
        *TOP_LAST,
    ]
    nav["Results"], nav["Lab"] = [], nav.pop("Lab")
    for name, folder in (("Results", "results"), ("Lab", "lab")):
        own = sorted(path.relative_to(DOCS).as_posix() for path in (DOCS / folder).glob("*.md"))
        index = f"{folder}/README.md"
        nav[name] = sorted(own, key=lambda page, index=index: (page != index, page))
    first = _new(["README.md", *_pages_in(introduction)], seen)
    nav["Start here"] = [{"First steps": page} if page == "start.md" else page for page in first]
    return [{name: pages} for name, pages in nav.items()]


def _questions(part: str, seen: set[str]) -> Iterator[dict[str, Any]]:
    for question, links in _ROW.findall(part):
        pages = _new(_pages_in(links), seen)
        if pages:
            yield {f"{question[0].upper()}{question[1:]}": pages[0] if len(pages) == 1 else pages}


def _pages_in(text: str) -> list[str]:
    links = [TOP.get(link.removeprefix("../"), link) for link in _LINK.findall(text)]
    return [link for link in links if "/" not in link]  # a folder is a section of its own


def _new(pages: list[str], seen: set[str]) -> list[str]:
    found = [page for page in dict.fromkeys(pages) if page not in seen]
    seen.update(found)
    return found


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
    for page in [ROOT / "README.md", *DOCS.glob("*.md")]:
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
