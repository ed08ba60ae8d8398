"""The page of the code's structure is the one that the docstrings make; the lines are counted."""

from __future__ import annotations

from tests import code_structure, house


def test_the_page_is_of_today() -> None:
    text = code_structure.PAGE.read_text("utf-8")
    assert text == code_structure.page(), "run `make structure`"


def test_every_module_has_a_line() -> None:
    text = code_structure.page()
    for name, path in house.modules().items():
        assert house.docstring(path), f"{name} does not say what it is for"
    count = sum(path.name != "__init__.py" for path in house.modules().values())
    assert text.count("\n- `") == count


def test_code_lines_leave_out_blanks_comments_and_docstrings() -> None:
    source = '"""Doc."""\n\n# a\ndef f():\n    """Doc\n    more.\n    """\n    return """a\nb"""\n'
    assert code_structure.code_lines(source) == 3


def test_lines_are_those_of_the_files() -> None:
    counts = code_structure.lines()
    assert counts["cdmpp"] == sum(
        len(path.read_text("utf-8").splitlines())
        for name, path in house.modules().items()
        if name.split(".")[0] == "cdmpp" and len(path.relative_to(house.ROOT).parts) == 2
    )
    assert counts["cdmpp/programs"] > 5000
