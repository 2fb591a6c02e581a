"""What an hour of an instance costs: list prices of the catalog, or one's own."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import date
from pathlib import Path
from typing import Any

from neurontools import catalog
from neurontools.catalog import Fact
from neurontools.estimate.failure import EstimateError

_SOURCES = Path(__file__).with_name("price_sources.toml")
ON_DEMAND = "on demand"
_KINDS = {  # as the catalog names them
    ON_DEMAND: "on_demand_usd_per_hour",
    "3 years reserved": "reserved_effective_usd_per_hour",
    "Capacity Block": "capacity_block_usd_per_hour",
    "spot, once": "spot_example_usd_per_hour",
    "SageMaker": "sagemaker_usd_per_hour",
}
_KEYS = frozenset({"instance_type", "kind", "usd_per_hour", "region", "date", "source"})
_OLD_DAYS = 365
_MOST_BYTES = 2**20


@dataclass(frozen=True, slots=True)
class Price:
    """US dollars for an hour of one instance, Linux. `region` and `read_on` are None where nobody wrote them down."""

    instance_type: str
    kind: str  # "on demand", or whatever a file of prices calls it
    usd_per_hour: float
    region: str | None
    read_on: date | None
    source: str

    def is_old(self, today: date) -> bool:
        """Whether it was read more than a year ago."""
        return self.read_on is not None and (today - self.read_on).days > _OLD_DAYS

    def text(self) -> str:
        """The price with where it is from."""
        where = ", ".join(filter(None, (self.region, None if self.read_on is None else self.read_on.isoformat())))
        return f"${self.usd_per_hour:,.4g}/h {self.kind}" + (f" ({where})" if where else "")


def list_prices(instance_type: str) -> list[Price]:
    """The catalog's prices of a type, on demand first; empty where none is published."""
    kind = catalog.load(instance_type)
    places = tomllib.loads(_SOURCES.read_text("utf-8"))
    texts = catalog.sources()
    found = []
    for name, field in _KINDS.items():
        fact: Fact[float] = getattr(kind, field)
        if fact.value is not None:
            source = fact.source[0] if fact.source else ""
            place = places.get(source, {})
            region = fact.note or place.get("region")
            found.append(
                Price(instance_type, name, fact.value, region, place.get("date"), texts.get(source, "not written down"))
            )
    return found


def read_prices(path: Path) -> list[Price]:
    """Prices of a file: TOML with [[price]] tables; EstimateError says what is wrong with it."""
    try:
        with path.open("rb") as opened:
            data = opened.read(_MOST_BYTES + 1)
        if len(data) > _MOST_BYTES:
            raise EstimateError(f"{path}: larger than 1 MiB; give a file of prices")
        tables = tomllib.loads(data.decode()).get("price")
    except OSError as error:
        raise EstimateError(f"{path}: {error.strerror}; give a file of prices") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError, RecursionError) as error:
        raise EstimateError(f"{path}: {str(error).splitlines()[0]}; write [[price]] tables") from None
    if not isinstance(tables, list) or not tables or not all(isinstance(table, dict) for table in tables):
        raise EstimateError(f"{path}: there is no [[price]]; each has instance_type and usd_per_hour")
    return [_price(path, table) for table in tables]


def _price(path: Path, table: Mapping[str, Any]) -> Price:
    unknown = sorted(table.keys() - _KEYS)
    if unknown:
        raise EstimateError(f"{path}: a price has no {unknown[0]!r}; there are {', '.join(sorted(_KEYS))}")
    instance_type, usd = table.get("instance_type"), table.get("usd_per_hour")
    if not isinstance(instance_type, str):
        raise EstimateError(f"{path}: a price has no instance_type; add it")
    if isinstance(usd, bool) or not isinstance(usd, (int, float)) or not 0 < usd < 1e6:
        raise EstimateError(f"{path}: {instance_type}: usd_per_hour is {usd!r}; give US dollars an hour")
    when = table.get("date")
    if when is not None and type(when) is not date:
        raise EstimateError(f"{path}: {instance_type}: date is {when!r}; give a day, such as 2026-07-20")
    return Price(
        instance_type=instance_type,
        kind=str(table.get("kind", "own price")),
        usd_per_hour=float(usd),
        region=None if table.get("region") is None else str(table["region"]),
        read_on=when,
        source=str(table.get("source", path)),
    )
