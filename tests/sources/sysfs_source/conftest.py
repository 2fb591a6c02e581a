"""Trees of the driver, and sources that read them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack

import pytest
from neurond.sources.sysfs import SysfsSource

from neurontools.testing import DriverTree
from tests.harness.sysfs_source import MakeTree, Open


@pytest.fixture
def make_tree() -> Iterator[MakeTree]:
    with ExitStack() as stack:
        yield lambda *arguments, **options: stack.enter_context(DriverTree(*arguments, **options))


@pytest.fixture
def open_source() -> Iterator[Open]:
    with ExitStack() as stack:

        def make(tree: DriverTree, **options: object) -> SysfsSource:
            source = SysfsSource(tree.roots, **options)  # type: ignore[arg-type]
            stack.callback(source.close)
            source.refresh()
            return source

        yield make
