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
    """Returns a function that creates driver trees, with the arguments of DriverTree.

    The end of the test removes the trees.
    """
    with ExitStack() as stack:

        def make(instance_type: str, **options: Any) -> DriverTree:
            return stack.enter_context(DriverTree(instance_type, **options))

        yield make


@pytest.fixture
def simulated_neuron_driver() -> Iterator[Callable[..., SimulatedDriver]]:
    """Returns a function that starts simulated drivers, with the arguments of SimulatedDriver.

    The end of the test stops the drivers.
    """
    with ExitStack() as stack:

        def start(instance_type: str, **options: Any) -> SimulatedDriver:
            return stack.enter_context(SimulatedDriver(instance_type, **options))

        yield start


@pytest.fixture
def simulated_neuron_host() -> Iterator[Callable[..., SimulatedHost]]:
    """Returns a function that starts simulated hosts, with the arguments of SimulatedHost.

    The end of the test stops the hosts.
    """
    with ExitStack() as stack:

        def start(instance_type: str, **options: Any) -> SimulatedHost:
            return stack.enter_context(SimulatedHost(instance_type, **options))

        yield start
