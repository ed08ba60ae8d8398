"""Hourly prices of devices: shipped and user files with a date and source."""

from __future__ import annotations

import datetime
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

from cdmpp.devices.registry import find_device, load_aliases, load_registry
from cdmpp.errors import DataError, UsageError
from cdmpp.files.places import package_folder
from cdmpp.files.yaml_text import parse_yaml
from cdmpp.text import nearest

#: Currency of all costs.
CURRENCY = "USD"
_FACTS = ("provider", "region", "currency", "date", "source")
_KEYS = (*_FACTS, "usd_rate", "hours_of_use", "devices")
_ENTRY = ("per_hour", "to_buy", "instance")


@dataclass(frozen=True)
class Price:
    """The hourly price of one device.

    Attributes:
        per_hour: US dollars, above 0.
        provider, region: seller and place.
        date: ISO date of the price.
        source: where the price was published.
        instance: instance that the device is part of; empty = the device alone.
    """

    per_hour: float
    provider: str
    region: str
    date: str
    source: str
    instance: str = ""

    @property
    def text(self) -> str:
        """The price in words."""
        part = f" ({self.instance})" if self.instance else ""
        return f"${self.per_hour:g} an hour, {self.provider}{part}, {self.region}, {self.date}"


def prices_of(
    paths: Iterable[Path] = (), own: Iterable[str] = (), *, provider: str | None = None
) -> dict[str, Price]:
    """Returns label -> the lowest price in the user's files, or else in the shipped files. Devices
    without a price are left out.

    Args:
        paths: the user's files.
        own: labels of devices that the user describes.
        provider: use only the shipped prices of this provider; None = all.

    Raises:
        DataError: a file is invalid.
        UsageError: no prices of the provider are shipped.
    """
    found: dict[str, Price] = {}
    lists = _shipped()
    providers = list(dict.fromkeys(one.provider for prices in lists for one in prices.values()))
    if provider is not None and provider not in providers:
        raise UsageError(
            f"no prices of {provider!r}{nearest(provider, providers)}; expected one of "
            f"{', '.join(providers)}, and --prices FILE takes others"
        )
    for prices in lists:
        if provider is None or provider in {one.provider for one in prices.values()}:
            _keep_lowest(found, prices)
    asked: dict[str, Price] = {}
    for path in paths:
        _keep_lowest(asked, read_prices(path, own))
    return found | asked


def read_prices(path: Path, own: Iterable[str] = ()) -> dict[str, Price]:
    """Reads a YAML file with the facts of a price list and `devices`, label -> `per_hour`, or
    `to_buy` with the file's `hours_of_use`.

    Args:
        own: known labels beyond the registry.

    Raises:
        DataError: unreadable, an unknown key or device, a missing fact, a price that is not a
            positive number, or a currency without a rate.
    """
    content = _read(path)
    facts = {name: _fact(content, name, path) for name in _FACTS}
    rate = _rate(content, facts["currency"], path)
    devices = content["devices"]
    if not isinstance(devices, dict) or not devices:
        raise DataError(f"{path}: `devices` is {devices!r}, expected label -> {{per_hour: N}}")
    own = list(own)
    found: dict[str, Price] = {}
    for name, entry in devices.items():
        label = _label(str(name), own, path)
        per_hour, instance = _entry(entry, content.get("hours_of_use"), f"{path}: {name}")
        price = Price(
            rate * per_hour, facts["provider"], facts["region"], facts["date"], facts["source"],
            instance,
        )  # fmt: skip
        _keep_lowest(found, {label: price})
    return found


@lru_cache(maxsize=1)
def _shipped() -> tuple[dict[str, Price], ...]:
    folder = package_folder("cdmpp.devices") / "prices"
    return tuple(read_prices(path) for path in sorted(folder.glob("*.yaml")))


def _keep_lowest(found: dict[str, Price], more: Mapping[str, Price]) -> None:
    for label, price in more.items():
        if label not in found or price.per_hour < found[label].per_hour:
            found[label] = price


def _read(path: Path) -> dict[str, Any]:
    try:
        content = parse_yaml(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise DataError(f"{path}: cannot read the prices ({error})") from None
    if not isinstance(content, dict) or "devices" not in content:
        raise DataError(f"{path}: expected {', '.join(_FACTS)} and `devices` (label -> per_hour)")
    for key in content:
        if key not in _KEYS:
            raise DataError(f"{path}: unknown key {key!r}{nearest(str(key), _KEYS)}")
    return content


def _fact(content: Mapping[str, Any], name: str, path: Path) -> str:
    value = content.get(name)
    if name == "date":
        if not isinstance(value, datetime.date):
            raise DataError(
                f"{path}: date is {value!r}, expected the day of the prices, e.g. 2026-11-24"
            )
        return value.isoformat()
    if not isinstance(value, str) or not value.strip():
        raise DataError(f"{path}: {name} is {value!r}, expected text, which every price needs")
    return value


def _rate(content: Mapping[str, Any], currency: str, path: Path) -> float:
    rate = content.get("usd_rate", 1.0 if currency == CURRENCY else None)
    if rate is None:
        raise DataError(
            f"{path}: its prices are in {currency}, costs are computed in {CURRENCY}; add "
            f"`usd_rate`, the price of one {currency} in dollars on that day"
        )
    return _positive(rate, f"{path}: usd_rate")


def _label(name: str, own: list[str], path: Path) -> str:
    if name in own:
        return name
    spec = find_device(name)
    if spec is None:
        near = nearest(name, [*own, *load_registry(), *load_aliases()])
        raise DataError(f"{path}: unknown device {name!r}{near}; see `cdmpp device list`")
    return spec.name


def _entry(entry: Any, hours: Any, where: str) -> tuple[float, str]:
    """Returns the hourly price in the file's currency, and the instance."""
    if not isinstance(entry, dict) or ("per_hour" in entry) == ("to_buy" in entry):
        raise DataError(f"{where}: {entry!r}, expected {{per_hour: N}} or {{to_buy: N}}")
    for key in entry:
        if key not in _ENTRY:
            raise DataError(f"{where}: unknown key {key!r}{nearest(str(key), _ENTRY)}")
    instance = str(entry.get("instance") or "")
    if "per_hour" in entry:
        return _positive(entry["per_hour"], f"{where}: per_hour"), instance
    if hours is None:
        raise DataError(
            f"{where}: a price to buy needs `hours_of_use` in the file, e.g. 26280 (three years)"
        )
    price = _positive(entry["to_buy"], f"{where}: to_buy")
    return price / _positive(hours, f"{where}: hours_of_use"), instance


def _positive(value: Any, where: str) -> float:
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    if not is_number or not 0 < value < float("inf"):
        raise DataError(f"{where} is {value!r}, expected a number above 0; unknown = leave it out")
    return float(value)
