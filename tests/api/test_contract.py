"""What the public Python promises: its names, signatures, docstrings, and that it loads late."""

from __future__ import annotations

import ast
import doctest
import inspect
import subprocess
import sys
from importlib import import_module

import pytest

import cdmpp
from tests.api import signatures
from tests.paths import ROOT


def test_no_public_signature_has_changed():
    assert signatures.text() == signatures.FILE.read_text("utf-8"), (
        "a public name or signature changed: keep the old one working for a release, say in "
        "CHANGELOG.md how to migrate, then run python -m tests.api.signatures write"
    )


@pytest.mark.parametrize(("name", "found"), list(signatures.public()))
def test_every_public_name_is_documented(name, found):
    text = inspect.getdoc(found)
    assert text is not None, f"{name} has no docstring"
    assert len(text.split()) >= 4, f"{name}: {text!r} is no description"
    page = (ROOT / "docs" / "reference" / "python.md").read_text("utf-8")
    first = name.removeprefix("cdmpp.").split(".")
    assert f"{first[-1]}" in page, f"docs/reference/python.md does not name {name}"


@pytest.mark.parametrize(
    "name",
    [
        "cdmpp", "cdmpp.api.model", "cdmpp.api.predictions", "cdmpp.devices.registry",
        "cdmpp.testing.cost_model",
    ],
)  # fmt: skip
def test_examples_of_docstrings_run(name):
    done = doctest.testmod(import_module(name))
    assert done.attempted
    assert not done.failed


def test_the_stub_names_what_there_is():
    tree = ast.parse((ROOT / "cdmpp" / "__init__.pyi").read_text("utf-8"))
    names = {
        alias.asname: node.module
        for node in tree.body
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
    }
    places = {name: f"cdmpp.{place}".rstrip(".") for name, place in cdmpp._PLACES.items()}
    assert names == places
    assert set(cdmpp._PLACES) <= set(dir(cdmpp))


def test_a_name_that_is_not_there_is_said():
    with pytest.raises(AttributeError, match="no attribute 'lode'"):
        cdmpp.lode  # noqa: B018


def test_asking_for_devices_and_a_model_loads_neither_torch_nor_tvm():
    code = (
        "import sys, cdmpp\n"
        "assert not {'numpy', 'yaml'} & set(sys.modules)\n"
        "cdmpp.load(), cdmpp.devices.get('t4'), cdmpp.Dataset\n"
        "assert not {'torch', 'tvm', 'pandas', 'sklearn', 'xgboost'} & set(sys.modules)\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True, cwd=ROOT)
