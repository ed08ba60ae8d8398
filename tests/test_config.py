"""Configuration: YAML and overrides onto dataclasses, and what is refused."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from cdmpp.config import dump_text, from_dict, load_config, to_dict
from cdmpp.errors import UsageError


@dataclass(frozen=True)
class Inner:
    width: int = 96
    rate: float = 1e-3
    kind: Literal["mean", "sum"] = "mean"
    is_fast: bool = False


@dataclass(frozen=True)
class Outer:
    name: str = "x"
    inner: Inner = Inner()
    shares: tuple[float, float] = (0.7, 0.3)
    devices: tuple[str, ...] = ()
    seeds: list[int] = field(default_factory=lambda: [0])
    path: Path | None = None
    limit: int | None = None
    scale: float | str = "auto"
    weights: dict[str, float] = field(default_factory=dict)


@dataclass(frozen=True)
class Required:
    count: int


def load(text: str, tmp_path: Path, *overrides: str) -> Outer:
    path = tmp_path / "config.yaml"
    path.write_text(text)
    return load_config(Outer, path, overrides=overrides)


def test_defaults_then_yaml_then_overrides(tmp_path: Path) -> None:
    text = "name: y\ninner: {width: 8, rate: 1e-4}\ndevices: [a, b]\nseeds: []\nweights: {a: 1}\n"
    config = load(text, tmp_path, "inner.width=9", "path=a/b", "limit=3", "scale=2.5")
    assert config == Outer(
        name="y", inner=Inner(width=9, rate=1e-4), devices=("a", "b"), seeds=[], path=Path("a/b"),
        limit=3, scale=2.5, weights={"a": 1.0},
    )  # fmt: skip
    assert load_config(Outer) == Outer()
    assert load("", tmp_path) == Outer()


def test_what_is_given_wins_and_none_is_not_given() -> None:
    given = {"name": "z", "limit": None, "devices": ("a",)}
    config = load_config(Outer, overrides=["name=y", "limit=4"], given=given)
    assert config == Outer(name="z", limit=4, devices=("a",))


@dataclass(frozen=True)
class Seeded:
    seed: int = 0


@pytest.mark.parametrize("seed", [-1, 2**32])
def test_a_seed_outside_the_range_of_the_generators_is_refused(seed: int) -> None:
    expected = f"setting seed is {seed}, expected a whole number from 0 to 4294967295"
    with pytest.raises(UsageError, match=expected):
        load_config(Seeded, overrides=[f"seed={seed}"])
    with pytest.raises(UsageError, match=expected):
        load_config(Seeded, given={"seed": seed})
    assert load_config(Seeded, given={"seed": 2**32 - 1}).seed == 2**32 - 1


def test_given_values_of_a_wrong_type_are_refused() -> None:
    with pytest.raises(UsageError, match="setting seed is '1', expected a whole number"):
        load_config(Seeded, given={"seed": "1"})


def test_a_base_replaces_the_defaults() -> None:
    base = Outer(name="base", inner=Inner(width=1, is_fast=True))
    config = load_config(Outer, overrides=["inner.width=2"], base=base)
    assert config == Outer(name="base", inner=Inner(width=2, is_fast=True))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("nam: y", "unknown setting nam, did you mean 'name'?"),
        ("inner: {widht: 3}", "unknown setting inner.widht, did you mean 'inner.width'?"),
        ("inner: 3", "inner: expected a mapping"),
        ("inner: {width: 3.5}", "inner.width is 3.5, expected a whole number"),
        ("inner: {width: true}", "inner.width is True, expected a whole number"),
        ("inner: {width: '3'}", "inner.width is '3', expected a whole number"),
        ("inner: {rate: slow}", "inner.rate is 'slow', expected a number"),
        ("inner: {is_fast: 1}", "inner.is_fast is 1, expected true or false"),
        ("inner: {kind: maen}", "expected one of mean, sum, did you mean 'mean'?"),
        ("name: 3", "name is 3, expected text"),
        ("name: null", "name is None, expected text"),
        ("shares: [1.0]", "shares is [1.0], expected a list of 2"),
        ("devices: a", "devices is 'a', expected a list"),
        ("devices: [1]", "devices[0] is 1, expected text"),
        ("weights: [1]", "weights is [1], expected a mapping"),
        ("limit: few", "limit is 'few', expected a whole number"),
        ("- 1", "expected a mapping"),
        ("a: [", "not YAML"),
        ("a: \x07", "not YAML"),
    ],
)
def test_a_wrong_setting_is_told(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(UsageError) as caught:
        load(text, tmp_path)
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("override", ["name", "=3", "inner..width=3", ".x=1"])
def test_a_malformed_override(override: str) -> None:
    with pytest.raises(UsageError, match="expected NAME=VALUE"):
        load_config(Outer, overrides=[override])


def test_a_missing_file_and_a_missing_value(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="cannot read the configuration"):
        load_config(Outer, tmp_path / "none.yaml")
    with pytest.raises(UsageError, match="count has no default"):
        load_config(Required)
    assert load_config(Required, overrides=["count=3"]) == Required(3)


@example(name="\x85", width=0, rate=0.0, devices=["\u2028"], limit=None)
@given(
    name=st.text(max_size=20),
    width=st.integers(-(2**60), 2**60),
    rate=st.floats(allow_nan=False, allow_infinity=False),
    devices=st.lists(st.text(max_size=5), max_size=3),
    limit=st.none() | st.integers(),
)
def test_what_is_dumped_is_read_back_equal(
    name: str, width: int, rate: float, devices: list[str], limit: int | None
) -> None:
    import yaml

    config = Outer(
        name=name,
        inner=Inner(width=width, rate=rate),
        devices=tuple(devices),
        limit=limit,
        path=Path("p"),
    )
    values: Any = yaml.safe_load(dump_text(config))
    assert from_dict(Outer, values) == config
    assert from_dict(Outer, to_dict(config)) == config
