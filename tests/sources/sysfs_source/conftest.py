"""Trees of the driver, and sources that read them."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.harness.sysfs_source import Drivers


@pytest.fixture
def drivers() -> Iterator[Drivers]:
    with Drivers() as made:
        yield made
