"""Instance types: cores and peak rates from the catalog; prices from the catalog or a file of the user."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import date
from pathlib import Path
from typing import Any

from neurontools import catalog
from neurontools.catalog import Fact
from neurontools.estimate.counted_run import EstimateError

ON_DEMAND = "on demand"

_SOURCES = Path(__file__).with_name("price_sources.toml")
_CATALOG_FIELDS = {  # maps a kind of price to the name of its catalog field
    ON_DEMAND: "on_demand_usd_per_hour",
    "3 years reserved": "reserved_effective_usd_per_hour",
    "Capacity Block": "capacity_block_usd_per_hour",
    "spot, once": "spot_example_usd_per_hour",
    "SageMaker": "sagemaker_usd_per_hour",
}
_PRICE_KEYS = frozenset({"instance_type", "kind", "usd_per_hour", "region", "date", "source"})
_OLD_DAYS = 365
_MAX_FILE_BYTES = 2**20
_CATALOG_RATES = {  # maps torch's element types to the catalog's rates; the first known rate applies
    "float32": ("fp32",),
    "bfloat16": ("bf16",),
    "float16": ("fp16", "bf16"),
    "tf32": ("tf32", "bf16"),
    "float8_e4m3fn": ("fp8", "cfp8", "bf16"),
    "float8_e5m2": ("fp8", "cfp8", "bf16"),
}


@dataclass(frozen=True, slots=True)
class InstanceHardware:
    """The hardware of an instance type. A "core" is a logical NeuronCore under the default LNC of the device family."""

    name: str
    core_count: int
    core_memory_bytes: int
    peak_flops: Mapping[str, float]  # FLOPs per second of one core, by torch's element types
    memory_bytes_per_second: float | None  # HBM bandwidth of one core
    vcpu_count: int | None  # of the whole instance

    @classmethod
    def from_catalog(cls, name: str) -> InstanceHardware:
        """Looks up an instance type. Raises EstimateError if it is unknown or has no published float32 rate."""
        try:
            entry = catalog.load(name)
        except catalog.UnknownInstanceType as error:
            raise EstimateError(str(error)) from None
        family = entry.family
        cores_per_device = entry.logical_cores_per_device()
        bandwidth = family.memory_bandwidth_bytes_per_second.value
        peaks = {}
        for dtype, rates in _CATALOG_RATES.items():
            peak = next((rate for each in rates if (rate := family.peak_flops_per_physical_core(each))), None)
            if peak is not None:
                peaks[dtype] = peak * family.checked_lnc()
        if "float32" not in peaks:
            raise EstimateError(f"{name}: its devices have no published rate for float32, and nothing trains on them")
        return cls(
            name=name,
            core_count=entry.logical_core_count(),
            core_memory_bytes=(family.device_memory_bytes.value or 0) // cores_per_device,
            peak_flops=peaks,
            memory_bytes_per_second=None if bandwidth is None else bandwidth / cores_per_device,
            vcpu_count=entry.vcpu_count.value,
        )

    def seconds_at_peak(self, flops_by_dtype: Mapping[str, float]) -> float:
        """Returns the seconds that one core needs at peak rate. A type without a rate counts at the float32 rate."""
        slowest = self.peak_flops["float32"]
        return sum(flops / self.peak_flops.get(dtype, slowest) for dtype, flops in flops_by_dtype.items())


@dataclass(frozen=True, slots=True)
class Price:
    """The price of one Linux instance in US dollars per hour.

    `region` and `read_on`, the day when the price was looked up, are None if unknown.
    """

    instance_type: str
    kind: str  # kind of price, such as "on demand", or a name from the user's file of prices
    usd_per_hour: float
    region: str | None
    read_on: date | None
    source: str

    def is_old(self, today: date) -> bool:
        """Whether the price was looked up more than a year ago."""
        return self.read_on is not None and (today - self.read_on).days > _OLD_DAYS

    def text(self) -> str:
        """Formats the price with its kind, region and day."""
        where = ", ".join(filter(None, (self.region, None if self.read_on is None else self.read_on.isoformat())))
        return f"${self.usd_per_hour:,.4g}/h {self.kind}" + (f" ({where})" if where else "")


def list_prices(instance_type: str) -> list[Price]:
    """Returns the catalog's prices of an instance type, the on-demand price first; [] if none is published."""
    entry = catalog.load(instance_type)
    price_sources = tomllib.loads(_SOURCES.read_text("utf-8"))
    source_names = catalog.sources()
    prices = []
    for kind, field in _CATALOG_FIELDS.items():
        fact: Fact[float] = getattr(entry, field)
        if fact.value is not None:
            source = fact.source[0] if fact.source else ""
            origin = price_sources.get(source, {})
            region = fact.note or origin.get("region")
            source_name = source_names.get(source, "not written down")
            prices.append(Price(instance_type, kind, fact.value, region, origin.get("date"), source_name))
    return prices


def read_prices(path: Path) -> list[Price]:
    """Reads instance prices from a TOML file with [[price]] tables.

    Raises EstimateError, with path and cause, if the file is unusable.
    """
    try:
        with path.open("rb") as opened:
            data = opened.read(_MAX_FILE_BYTES + 1)
        if len(data) > _MAX_FILE_BYTES:
            raise EstimateError(f"{path}: larger than 1 MiB; give a file of prices")
        tables = tomllib.loads(data.decode()).get("price")
    except OSError as error:
        raise EstimateError(f"{path}: {error.strerror}; give a file of prices") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError, RecursionError) as error:
        raise EstimateError(f"{path}: {str(error).splitlines()[0]}; write [[price]] tables") from None
    if not isinstance(tables, list) or not tables or not all(isinstance(table, dict) for table in tables):
        raise EstimateError(f"{path}: there is no [[price]]; each has instance_type and usd_per_hour")
    return [_price_from_table(path, table) for table in tables]


def _price_from_table(path: Path, table: Mapping[str, Any]) -> Price:
    unknown = sorted(table.keys() - _PRICE_KEYS)
    if unknown:
        raise EstimateError(f"{path}: a price has no {unknown[0]!r}; there are {', '.join(sorted(_PRICE_KEYS))}")
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
