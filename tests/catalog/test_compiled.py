from __future__ import annotations

import tomllib
import zlib
from importlib import import_module
from pathlib import Path

import pytest

from neurontools.catalog import reader

DATA = Path(reader.__file__).parent / "data"


@pytest.mark.parametrize("file", sorted(DATA.glob("*.toml")), ids=lambda file: file.stem)
def test_the_compiled_tables_are_those_of_the_data(file: Path) -> None:
    """When this fails, data was changed: run scripts/compile-catalog."""
    module = import_module(f"neurontools.catalog.compiled.{file.stem}")
    content = file.read_bytes()
    assert zlib.crc32(content) == module.CRC32
    assert tomllib.loads(content.decode()) == module.TABLES


def test_changed_data_beats_the_compiled_tables(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "index.toml").write_text('[instance_types]\n"trn9.xlarge" = "trainium"\n')
    (tmp_path / "other.toml").write_text("[a]\nb = 1\n")
    monkeypatch.setattr(reader, "_DATA_DIRECTORY", str(tmp_path))
    parse = reader.parsed.__wrapped__
    assert parse("index.toml") == {"instance_types": {"trn9.xlarge": "trainium"}}
    assert parse("other.toml") == {"a": {"b": 1}}
