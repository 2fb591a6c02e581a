"""A Neuron driver for test suites: its sysfs tree with /proc and /dev beside it, without hardware.

`DriverTree` is set by the test, `SimulatedDriver` moves by itself; `SimulatedFleet` is many hosts with their daemons.
On a `SimulatedHost` processes train and devices break: `with host.fault("hbm-uncorrectable", device=3): ...`.
All are contexts. With `pytest_plugins = ["neurontools.testing.pytest_plugin"]` there are fixtures, and `python -m
neurontools.testing.namespace` runs an unmodified program that sees such a tree where the driver has it.
"""

from neurontools.testing.driver_tree import DriverTree as DriverTree
from neurontools.testing.fleet import SimulatedFleet as SimulatedFleet
from neurontools.testing.idle_host import idle_host as idle_host
from neurontools.testing.idle_host import process_on as process_on
from neurontools.testing.simulated_driver import SimulatedDriver as SimulatedDriver
from neurontools.testing.simulated_host import SimulatedHost as SimulatedHost
