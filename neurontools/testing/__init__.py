"""Simulated Neuron drivers, hosts and fleets for test suites, without hardware.

* `DriverTree`: the driver's sysfs tree with /proc and /dev, in which the test sets all values.
* `SimulatedDriver`: a tree that a simulated instance updates.
* `SimulatedHost`: a host to train on, with injectable faults: `with host.fault("hbm-uncorrectable", device=3): ...`.
* `SimulatedFleet`: many hosts with their daemons.

All are context managers. `pytest_plugins = ["neurontools.testing.pytest_plugin"]` adds fixtures. `python -m
neurontools.testing.namespace` runs an unmodified program that sees such a tree instead of the driver.
"""

from neurontools.testing.driver_tree import DriverTree as DriverTree
from neurontools.testing.idle_host import idle_host as idle_host
from neurontools.testing.idle_host import process_on as process_on
from neurontools.testing.simulated import SimulatedDriver as SimulatedDriver
from neurontools.testing.simulated import SimulatedFleet as SimulatedFleet
from neurontools.testing.simulated import SimulatedHost as SimulatedHost
