"""pytest fixtures; add this module to `pytest_plugins`."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any

import pytest

from neurontools.testing.driver_tree import DriverTree
from neurontools.testing.simulated import SimulatedDriver, SimulatedHost


@pytest.fixture
def neuron_driver_tree() -> Iterator[Callable[..., DriverTree]]:
    """Makes trees, with the arguments of DriverTree. Removes them after the test."""
    with ExitStack() as stack:

        def make(instance_type: str, **options: Any) -> DriverTree:
            return stack.enter_context(DriverTree(instance_type, **options))

        yield make


@pytest.fixture
def simulated_neuron_driver() -> Iterator[Callable[..., SimulatedDriver]]:
    """Starts simulated drivers, with the arguments of SimulatedDriver. Ends them after the test."""
    with ExitStack() as stack:

        def start(instance_type: str, **options: Any) -> SimulatedDriver:
            return stack.enter_context(SimulatedDriver(instance_type, **options))

        yield start


@pytest.fixture
def simulated_neuron_host() -> Iterator[Callable[..., SimulatedHost]]:
    """Starts simulated hosts, with the arguments of SimulatedHost. Ends them after the test."""
    with ExitStack() as stack:

        def start(instance_type: str, **options: Any) -> SimulatedHost:
            return stack.enter_context(SimulatedHost(instance_type, **options))

        yield start
