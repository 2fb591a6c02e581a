"""Strict reading of the catalog's TOML tables: a wrong, missing or unknown key is an error that names file and key."""

from __future__ import annotations

import zlib
from collections.abc import Iterator, Mapping
from functools import cache

from neurontools.catalog.fact import Fact, Status
from neurontools.util.light_imports import TypeVar

T = TypeVar("T")

_DATA_DIRECTORY = f"{__file__.rpartition('/')[0]}/data"
_VALUELESS = frozenset({Status.UNKNOWN, Status.NOT_APPLICABLE})


class CatalogDataError(ValueError):
    """A data file of the catalog is wrong; the text names the file and the key."""


class Table:
    """A TOML table whose keys are taken one by one; use `reading`, which refuses keys that nobody took."""

    def __init__(self, data: Mapping[str, object], file_name: str, path: str = "") -> None:
        self._left = dict(data)
        self._file_name = file_name
        self._path = path

    def error(self, key: str, problem: str) -> CatalogDataError:
        """An error about one key of this table, to be raised."""
        return CatalogDataError(f"{self._file_name}: {self._under(key)}: {problem}")

    @property
    def remaining(self) -> tuple[str, ...]:
        """The keys not taken yet, in the order of the file."""
        return tuple(self._left)

    def has(self, key: str) -> bool:
        """Whether the key is there and not taken yet."""
        return key in self._left

    def take(self, key: str, kind: type[T]) -> T:
        """The value of a key that must be there and be of this kind; an integer serves as a float."""
        if key not in self._left:
            raise self.error(key, "is missing")
        return self._as(kind, self._left.pop(key), key)

    def take_text(self, key: str) -> str:
        """A text that may be left out: then it is empty."""
        return self.take(key, str) if self.has(key) else ""

    def take_all(self, key: str, kind: type[T]) -> tuple[T, ...]:
        """An array whose elements are of this kind."""
        return tuple(self._as(kind, element, key) for element in self.take(key, list))

    def take_rows(self, key: str) -> tuple[tuple[int, ...], ...]:
        """An array of arrays of integers."""
        return tuple(tuple(self._as(int, n, key) for n in row) for row in self.take_all(key, list))

    def take_tables(self, key: str) -> Iterator[Table]:
        """The tables of an array, each read to the end before the next."""
        for position, data in enumerate(self.take_all(key, dict)):
            with reading(data, self._file_name, f"{self._under(key)}[{position}]") as table:
                yield table

    def take_rates(self, key: str) -> tuple[tuple[str, float], ...]:
        """A table of numbers, as pairs in the order of the file."""
        rates = self.take(key, dict)
        return tuple((name, self._as(float, rate, f"{key}.{name}")) for name, rate in rates.items())

    def take_fact(self, key: str, kind: type[T]) -> Fact[T]:
        """A fact that must be there: {value, status, source, note}, without a value when unknown or n/a."""
        with self.inner(key) as table:
            value = table.take("value", kind) if table.has("value") else None
            return table.take_standing(value)

    def take_fact_or_unknown(self, key: str, kind: type[T]) -> Fact[T]:
        """A fact that may be left out: then it is unknown."""
        return self.take_fact(key, kind) if self.has(key) else Fact(None, Status.UNKNOWN)

    def take_standing(self, value: T | None) -> Fact[T]:
        """The fact made of `value` and this table's status, source and note."""
        text = self.take("status", str)
        if text not in list(Status):
            raise self.error("status", f"{text!r} is none of {', '.join(Status)}")
        status = Status(text)
        if (value is None) != (status in _VALUELESS):
            raise self.error("status", f"{text!r} does not go with {'no value' if value is None else 'a value'}")
        return Fact(value, status, self.take_all("source", str), self.take_text("note"))

    def inner(self, key: str) -> reading:
        """Read the table under a key; at the end, nothing may be left in it."""
        return reading(self.take(key, dict), self._file_name, self._under(key))

    def finish(self) -> None:
        """Refuse what was not taken."""
        for key in self._left:
            raise self.error(key, "is not a key of this table")

    def _under(self, key: str) -> str:
        return f"{self._path}.{key}" if self._path else key

    def _as(self, kind: type[T], value: object, key: str) -> T:
        if kind is float and type(value) is int:
            value = float(value)
        # type() and not isinstance(): a TOML boolean must not pass for an integer.
        if type(value) is not kind:
            raise self.error(key, f"{value!r} is not of type {kind.__name__}")
        return value


class reading:  # noqa: N801 - reads like a function; contextlib takes longer to import than the catalog to read
    """Read one table, `path` from the top of the file; at the end, nothing may be left in it."""

    def __init__(self, data: Mapping[str, object], file_name: str, path: str = "") -> None:
        self._table = Table(data, file_name, path)

    def __enter__(self) -> Table:
        return self._table

    def __exit__(self, failure: type[BaseException] | None, *_: object) -> None:
        if failure is None:
            self._table.finish()


@cache
def parsed(file_name: str) -> dict[str, dict[str, object]]:
    """A data file of the catalog, parsed once; not to be changed by the caller."""
    with open(f"{_DATA_DIRECTORY}/{file_name}", "rb") as file:  # noqa: PTH123 - pathlib is slow
        content = file.read()
    tables = _compiled(file_name, zlib.crc32(content))
    if tables is not None:
        return tables
    import tomllib

    try:
        return tomllib.loads(content.decode())
    except tomllib.TOMLDecodeError as error:
        raise CatalogDataError(f"{file_name}: {error}") from error


def _compiled(file_name: str, crc32: int) -> dict[str, dict[str, object]] | None:
    """The tables as scripts/compile-catalog wrote them; None when the data was changed since, or never compiled."""
    try:
        # importlib would do the same and imports much to do it.
        module = __import__(f"neurontools.catalog.compiled.{file_name.removesuffix('.toml')}", fromlist=["TABLES"])
    except ImportError:
        return None
    tables: dict[str, dict[str, object]] = module.TABLES
    return tables if crc32 == module.CRC32 else None
