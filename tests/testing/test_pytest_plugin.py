"""The fixtures in somebody else's test suite: software that reads the driver's tree, tested without hardware."""

from __future__ import annotations

import os
import sys
import tempfile
from pathlib import Path

import pytest

pytest_plugins = ["pytester"]

# What others write: it knows the driver's files and nothing of us.
_SOFTWARE = """
import os

def device_count(sysfs):
    return sum(name.startswith("neuron") for name in os.listdir(f"{sysfs}/devices/virtual/neuron_device"))

def tensors_bytes(sysfs, device, core):
    path = f"{sysfs}/devices/virtual/neuron_device/neuron{device}/neuron_core{core}"
    with open(f"{path}/stats/memory_usage/device_mem/tensors/total") as file:
        return int(file.read())

def executions(sysfs):
    path = f"{sysfs}/devices/virtual/neuron_device/neuron0/neuron_core0/stats/other_info/inference_count/total"
    with open(path) as file:
        return int(file.read())
"""


@pytest.fixture
def foreign(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> pytest.Pytester:
    """A project of somebody else that names our plugin in its conftest."""
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(path for path in sys.path if path))
    temporary = str(pytester.mkdir("temporary"))
    monkeypatch.setenv("TMPDIR", temporary)
    monkeypatch.setattr(tempfile, "tempdir", temporary)
    pytester.makeini("[pytest]\nasyncio_default_fixture_loop_scope = function\n")  # pytest-asyncio warns without it
    pytester.makeconftest('pytest_plugins = ["neurontools.testing.pytest_plugin"]')
    pytester.makepyfile(fleet=_SOFTWARE)
    return pytester


def _left_behind(foreign: pytest.Pytester) -> list[Path]:
    return list((foreign.path / "temporary").glob("neuron-driver-*"))


def test_the_fixtures(foreign: pytest.Pytester) -> None:
    foreign.makepyfile(
        """
        import fleet
        import pytest
        from neurontools.faults.requests import ImpossibleFault
        from neurontools.model import DeviceMemory

        def test_a_tree_that_the_test_sets(neuron_driver_tree):
            tree = neuron_driver_tree("trn1.32xlarge")
            assert fleet.device_count(tree.roots.sys) == 16
            assert fleet.tensors_bytes(tree.roots.sys, 1, 0) == 0
            tree.set_core(2, memory=DeviceMemory(tensors_bytes=4096))
            assert fleet.tensors_bytes(tree.roots.sys, 1, 0) == 4096
            tree.remove_device(7)
            assert fleet.device_count(tree.roots.sys) == 15

        def test_two_hosts_and_options(neuron_driver_tree):
            old = neuron_driver_tree("inf2.xlarge", driver_version="2.24.7.0")
            new = neuron_driver_tree("trn2.3xlarge", logical_neuroncore_config=1)
            assert (old.device_path(0) / "core_count").stat().st_mode & 0o777 == 0o400
            assert (new.device_path(0) / "core_count").stat().st_mode & 0o777 == 0o444
            assert old.directory != new.directory

        def test_counters_move(simulated_neuron_driver):
            driver = simulated_neuron_driver("trn1.2xlarge", scenario="steady", interval_seconds=0.05)
            first = fleet.executions(driver.roots.sys)
            while fleet.executions(driver.roots.sys) <= first:
                pass

        def test_a_host_whose_devices_break(simulated_neuron_host):
            host = simulated_neuron_host("trn1.2xlarge", interval_seconds=0.05)
            assert host.faults == () and host.kernel_log.read_text() == ""
            with host.fault("hbm-uncorrectable", device=0) as fault:
                assert [each.number for each in host.faults] == [fault.number]
                assert host.snapshot.devices[0].ecc.mem_uncorrected_total == 1
            assert host.faults == ()
            assert host.snapshot.devices[0].ecc.mem_uncorrected_total == 0
            with pytest.raises(ImpossibleFault):
                host.inject("nonsense", device=0)
        """
    )
    foreign.runpytest_inprocess("-p", "no:cacheprovider").assert_outcomes(passed=4)
    assert _left_behind(foreign) == []


@pytest.mark.slow
def test_a_test_that_fails_leaves_nothing_behind_and_an_error_of_use_says_what_is_wrong(
    foreign: pytest.Pytester,
) -> None:
    foreign.makepyfile(
        """
        def test_fails(neuron_driver_tree, simulated_neuron_driver):
            tree = neuron_driver_tree("inf2.xlarge")
            driver = simulated_neuron_driver("inf2.xlarge")
            assert not tree.device_path(0).exists(), f"PID {driver.pid}"

        def test_refused(simulated_neuron_driver):
            simulated_neuron_driver("trn9.huge")
        """
    )
    done = foreign.runpytest_inprocess("-p", "no:cacheprovider")
    done.assert_outcomes(failed=2)
    assert _left_behind(foreign) == []
    (pid,) = {line.partition("PID ")[2].split()[0] for line in done.outlines if "AssertionError: PID " in line}
    with pytest.raises(ProcessLookupError):
        os.kill(int(pid), 0)
    done.stdout.fnmatch_lines(["*RuntimeError: the simulated driver did not start: *no instance type *"])
