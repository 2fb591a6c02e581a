"""What the tests of the small client share."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.harness.raw_server import RawServer


@pytest.fixture
def server(tmp_path: Path) -> Iterator[RawServer]:
    """A server that says what the test has it say."""
    raw = RawServer(str(tmp_path / "s.sock"))
    yield raw
    raw.close()
