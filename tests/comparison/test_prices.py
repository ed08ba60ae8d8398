"""Prices: what is shipped, what a user brings, what is no price."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from cdmpp.comparison.prices import prices_of, read_prices
from cdmpp.devices.registry import load_registry
from cdmpp.errors import DataError, UsageError
from tests.paths import ROOT

FILES = sorted((ROOT / "cdmpp" / "devices" / "prices").glob("*.yaml"))
FACTS = {
    "provider": "Mine", "region": "here", "currency": "USD", "date": "2026-05-01",
    "source": "my contract",
}  # fmt: skip


def written(folder: Path, devices: object, **changes: object) -> Path:
    content = {**FACTS, "devices": devices, **changes}
    text = yaml.safe_dump({key: value for key, value in content.items() if value is not None})
    path = folder / "prices.yaml"
    path.write_text(text.replace("'2026-05-01'", "2026-05-01"))
    return path


def test_shipped_prices_are_of_known_devices_with_a_source() -> None:
    found = prices_of()
    assert len(found) >= 15
    assert set(found) <= set(load_registry())
    for price in found.values():
        assert 0.1 < price.per_hour < 30
        assert price.date >= "2026-01-01"
        assert len(price.source) > 20
    for path in FILES:
        for label, price in read_prices(path).items():
            assert found[label].per_hour <= price.per_hour


def test_a_users_price_counts_before_the_shipped_ones(tmp_path: Path) -> None:
    path = written(
        tmp_path, {"h100": {"per_hour": 99, "instance": None}, "NVIDIA L40S": {"per_hour": 0.5}}
    )
    found = prices_of([path])
    assert found["h100"].per_hour == 99
    assert found["h100"].text == "$99 an hour, Mine, here, 2026-05-01"
    assert found["l40s"].provider == "Mine"
    assert found["b200"] == prices_of()["b200"]


def test_one_providers_prices_alone() -> None:
    alone = prices_of(provider="Oracle Cloud")
    assert {price.provider for price in alone.values()} == {"Oracle Cloud"}
    assert alone["h100"].per_hour > prices_of()["h100"].per_hour
    with pytest.raises(UsageError, match="no prices of 'Oracel Cloud', did you mean 'Oracle Cl"):
        prices_of(provider="Oracel Cloud")


def test_another_currency_and_a_price_to_buy(tmp_path: Path) -> None:
    path = written(
        tmp_path, {"b60": {"to_buy": 657.0}}, currency="EUR", usd_rate=1.2, hours_of_use=26280
    )
    assert read_prices(path)["b60"].per_hour == pytest.approx(1.2 * 657 / 26280)


def test_a_device_of_ones_own_may_have_a_price(tmp_path: Path) -> None:
    path = written(tmp_path, {"my-board": {"per_hour": 1}})
    assert read_prices(path, ["my-board"])["my-board"].per_hour == 1


@pytest.mark.parametrize(
    ("devices", "changes", "message"),
    [
        ({"h100": {"per_hour": 1}}, {"currency": "EUR"}, "prices are in EUR.*add `usd_rate`"),
        ({"h1000": {"per_hour": 1}}, {}, "unknown device 'h1000', did you mean 'h100'"),
        ({"h100": {"per_hour": 0}}, {}, "expected a number above 0; unknown = leave it out"),
        ({"h100": {"per_hour": "cheap"}}, {}, "per_hour is 'cheap'"),
        ({"h100": {"per_hours": 1}}, {}, "expected {per_hour: N} or {to_buy: N}"),
        ({"h100": {"per_hour": 1, "instances": "x"}}, {}, "did you mean 'instance'"),
        ({"h100": {"to_buy": 30000}}, {}, "needs `hours_of_use`"),
        ({"h100": {"per_hour": 1}}, {"source": None}, "source is None, expected text"),
        (
            {"h100": {"per_hour": 1}},
            {"date": "May"},
            "date is 'May', expected the day of the prices",
        ),
        ({"h100": {"per_hour": 1}}, {"regions": "x"}, "unknown key 'regions', did you mean 'reg"),
        ([], {}, r"`devices` is \[\]"),
    ],
)
def test_what_is_no_price_is_one_sentence(
    tmp_path: Path, devices: object, changes: dict[str, object], message: str
) -> None:
    path = written(tmp_path, devices, **changes)
    with pytest.raises(DataError, match=message) as caught:
        read_prices(path)
    assert "\n" not in str(caught.value)


def test_an_unreadable_file(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="cannot read the prices"):
        read_prices(tmp_path / "none.yaml")
    (tmp_path / "list.yaml").write_text("- 1\n")
    with pytest.raises(DataError, match="expected provider, region"):
        read_prices(tmp_path / "list.yaml")
