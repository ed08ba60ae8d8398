"""The structure of the product as its imports draw it: modules, arrows, circles, layers."""

from __future__ import annotations

import ast
from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cache, lru_cache
from pathlib import Path

from tests.paths import ROOT

PACKAGES = ("cdmpp", "tvm_helper")
#: Lowest first: a module imports from its own line or from lines above it.
LAYERS = (
    "arrays errors records config metrics conformal extras machine text renames "
    "files processes timing pretrained",
    "devices programs",
    "datasets",
    "analytic",
    "models",
    "networks replay profiling",
    "calibration",
    "predict",
    "training",
    "report testing",
    "comparison",
    "serve",
    "autotune tvm_helper",
    "api",
    "cli",
    "__main__",
)
MOST_MODULES = 15


@dataclass(frozen=True)
class Arrow:
    """One import: who imports whom, by dotted module names.

    Attributes:
        is_typing: for type checkers alone.
    """

    source: str
    target: str
    is_typing: bool = False

    def __str__(self) -> str:
        return f"{self.source} -> {self.target}"


@cache
def tree_of(path: Path) -> ast.Module:
    """Returns the parsed source."""
    return ast.parse(path.read_text("utf-8"))


@cache
def statements_of(path: Path) -> tuple[ast.AST, ...]:
    """Returns a module's statements and what they hold besides expressions: few of its nodes."""
    found: list[ast.AST] = [tree_of(path)]
    for node in found:
        found += (child for child in ast.iter_child_nodes(node) if not isinstance(child, ast.expr))
    return tuple(found)


@lru_cache(maxsize=1)
def modules() -> dict[str, Path]:
    """Returns the product's modules by dotted name; a package stands for its `__init__`."""
    found = {}
    for package in PACKAGES:
        for path in sorted((ROOT / package).rglob("*.py")):
            parts = path.relative_to(ROOT).with_suffix("").parts
            found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return found


@lru_cache(maxsize=1)
def arrows() -> tuple[Arrow, ...]:
    """Returns every import of one module of the product by another."""
    found = set()
    for name, path in modules().items():
        for target, is_typing in _imports(tree_of(path)):
            if target != name:
                found.add(Arrow(name, target, is_typing))
    return tuple(sorted(found, key=lambda arrow: (arrow.source, arrow.target, arrow.is_typing)))


def _imports(node: ast.AST, is_typing: bool = False) -> Iterator[tuple[str, bool]]:
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.Import):
            yield from ((a.name, is_typing) for a in child.names if a.name in modules())
        elif isinstance(child, ast.ImportFrom) and child.module in modules():
            for alias in child.names:
                inner = f"{child.module}.{alias.name}"
                yield (inner if inner in modules() else child.module), is_typing
        elif not isinstance(child, ast.expr):
            typing = isinstance(child, ast.If) and getattr(child.test, "id", "") == "TYPE_CHECKING"
            yield from _imports(child, is_typing or typing)


def layer_of(module: str) -> int:
    """Returns the layer of a module, 0 at the bottom."""
    parts = module.split(".")
    word = "tvm_helper" if parts[0] == "tvm_helper" else parts[1] if len(parts) > 1 else "errors"
    for number, line in enumerate(LAYERS):
        if word in line.split():
            return number
    raise AssertionError(f"{module} is on no layer; add it to LAYERS in {__name__}")


def upward() -> list[str]:
    """Returns the imports that a layer makes from a higher one."""
    return [
        str(a)
        for a in arrows()
        if layer_of(a.target) > layer_of(a.source) or _is_from_a_neighbour(a)
    ]


def _is_from_a_neighbour(arrow: Arrow) -> bool:
    """Whether a package imports another package of its own layer that imports it too."""
    ends = [_package(end) for end in (arrow.source, arrow.target)]
    if ends[0] == ends[1] or layer_of(arrow.source) != layer_of(arrow.target):
        return False
    back = (ends[1], ends[0])
    return any((_package(a.source), _package(a.target)) == back for a in arrows())


def _package(module: str) -> str:
    parts = module.split(".")
    return parts[0] if parts[0] == "tvm_helper" else ".".join(parts[:2])


def folder_breaches() -> list[str]:
    """Returns the imports between folders of a package that run both ways, and those of a
    sub-folder from its parent that lead back into it.
    """
    folders = {name for name, path in modules().items() if path.name == "__init__.py"}
    targets: dict[str, set[str]] = defaultdict(set)
    for arrow in arrows():
        targets[arrow.source].add(arrow.target)
    ties: dict[tuple[str, str], list[Arrow]] = defaultdict(list)
    breaches = []
    for arrow in arrows():
        source, target = (_folder(end, folders) for end in (arrow.source, arrow.target))
        if source == target or _package(arrow.source) != _package(arrow.target):
            continue
        if source.startswith(f"{target}."):
            if any(_folder(end, folders) == source for end in _reached(arrow.target, targets)):
                breaches.append(str(arrow))
        elif not target.startswith(f"{source}."):
            ties[source, target].append(arrow)
    for source, target in sorted(ties):
        if source < target and (target, source) in ties:
            both = ties[source, target], ties[target, source]
            breaches += [str(arrow) for arrow in min(both, key=len)]
    return breaches


def _reached(module: str, targets: dict[str, set[str]]) -> set[str]:
    """Returns all modules that a module imports, however far."""
    found: set[str] = set()
    waiting = [module]
    while waiting:
        for target in targets.get(waiting.pop(), ()):
            if target not in found:
                found.add(target)
                waiting.append(target)
    return found


def _folder(module: str, folders: set[str]) -> str:
    return module if module in folders else module.rpartition(".")[0]


def private_breaches() -> list[str]:
    """Returns the imports of a module `_x` from outside its own folder."""
    return [
        str(a)
        for a in arrows()
        if a.target.rpartition(".")[2].startswith("_")
        and a.target.rpartition(".")[0] != a.source.rpartition(".")[0]
    ]


def circles() -> list[list[str]]:
    """Returns the groups of modules that import each other in a loop, whatever for."""
    graph: dict[str, set[str]] = defaultdict(set)
    for arrow in arrows():
        graph[arrow.source].add(arrow.target)
    return [sorted(group) for group in _strong(graph) if len(group) > 1]


def _strong(graph: dict[str, set[str]]) -> Iterable[list[str]]:
    """Yields the strongly connected components of a graph (Tarjan)."""
    index: dict[str, int] = {}
    low: dict[str, int] = {}
    stack: list[str] = []
    found: list[list[str]] = []

    def visit(node: str) -> None:
        index[node] = low[node] = len(index)
        stack.append(node)
        for target in sorted(graph.get(node, ())):
            if target not in index:
                visit(target)
                low[node] = min(low[node], low[target])
            elif target in stack:
                low[node] = min(low[node], index[target])
        if low[node] == index[node]:
            at = stack.index(node)
            found.append(stack[at:])
            del stack[at:]

    for node in sorted(graph):
        if node not in index:
            visit(node)
    return found


def crowded() -> dict[str, int]:
    """Returns the folders of the product with too many modules, and how many they hold."""
    counts: dict[str, int] = defaultdict(int)
    for name, path in modules().items():
        if path.name != "__init__.py":
            counts[name.rpartition(".")[0]] += 1
    return {folder: count for folder, count in counts.items() if count > MOST_MODULES}


def namespace_breaches() -> list[str]:
    """Returns the functions of the command line that take parsed arguments and are not `run*`."""
    found = []
    for name, path in modules().items():
        if not name.startswith("cdmpp.cli"):
            continue
        for node in statements_of(path):
            if isinstance(node, ast.FunctionDef) and not node.name.startswith("run"):
                taken = [*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs]
                kinds = [ast.unparse(a.annotation) for a in taken if a.annotation is not None]
                if any("Namespace" in kind for kind in kinds):
                    found.append(f"{name}.{node.name}")
    return found


def imports_any(path: Path, names: tuple[str, ...]) -> bool:
    """Whether a module imports one of these packages or modules, or a part of one, for whatever."""
    for node in statements_of(path):
        if isinstance(node, ast.Import):
            found = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            found = [f"{node.module or ''}.{alias.name}" for alias in node.names]
        else:
            continue
        if any(f"{name}.".startswith(f"{one}.") for name in found for one in names):
            return True
    return False


def helper_modules_without_tvm() -> list[str]:
    """Returns the modules of tvm_helper that neither import a TVM nor reach a module that does."""
    targets: dict[str, set[str]] = defaultdict(set)
    for arrow in arrows():
        if not arrow.is_typing:
            targets[arrow.source].add(arrow.target)
    helper = {name: path for name, path in modules().items() if name.startswith("tvm_helper")}
    with_tvm = {name for name, path in helper.items() if imports_any(path, ("tvm", "tvm_ffi"))}
    return [
        name
        for name, path in helper.items()
        if path.name != "__init__.py" and not ({name} | _reached(name, targets)) & with_tvm
    ]


def docstring(path: Path) -> str:
    """Returns the first paragraph of a module's docstring."""
    return (ast.get_docstring(tree_of(path)) or "").split("\n\n")[0]


def public_classes(path: Path) -> list[str]:
    """Returns the names of a module's public classes."""
    body = tree_of(path).body
    return [n.name for n in body if isinstance(n, ast.ClassDef) and not n.name.startswith("_")]


def unresolved_imports() -> list[str]:
    """Returns what the laboratory, tests and scripts import from each other or the product by a
    name that is not there: much of it runs only by hand.
    """
    others = {
        ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__"): path
        for folder in ("tests", "scripts", "lab")
        for path in (ROOT / folder).rglob("*.py")
    }
    known = {**modules(), **others}
    folders = {".".join(path.parent.relative_to(ROOT).parts) for path in known.values()}
    trees = {name: tree_of(path) for name, path in known.items()}
    names = cache(lambda name: _names_bound(trees[name]) if name in trees else set())
    found = []
    for source in others:
        for node in statements_of(others[source]):
            if not isinstance(node, ast.ImportFrom) or not node.module:
                continue
            if node.module.split(".")[0] in (*PACKAGES, "tests", "lab"):
                wanted = [(f"{node.module}.{alias.name}", alias.name) for alias in node.names]
                found += [
                    f"{source} -> {full}"
                    for full, name in wanted
                    if full not in known and full not in folders
                    if name not in names(node.module)
                ]
    return found


def _names_bound(tree: ast.AST) -> set[str]:
    names = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            names.add(node.name)
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            names.add(node.id)
        elif isinstance(node, ast.alias):
            names.add((node.asname or node.name).split(".")[0])
    return names
