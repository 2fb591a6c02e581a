"""Power, ECC errors and what the driver itself calls unhealthy."""

from __future__ import annotations

from dataclasses import replace

import pytest

from neurontools.model import EccCounters, ReportedHealth
from tests.harness.sysfs_source import MakeTree, Open, device_of


@pytest.mark.parametrize(
    ("text", "power"),
    [
        ("POWER_STATUS_VALID,1769000040,0.86,25.00,18.86\n", (1769000040.0, 0.0086, 0.25, 0.1886)),
        ("POWER_STATUS_NO_DATA,1769000040,0.00,0.00,0.00\n", None),
        ("POWER_STATUS_VALID,1769000040,nan,25.00,18.86\n", None),
        ("POWER_STATUS_VALID,1769000040,30.00,25.00,18.86\n", None),
        ("POWER_STATUS_VALID\n", None),
        ("", None),
    ],
)
def test_power(
    make_tree: MakeTree, open_source: Open, text: str, power: tuple[float, float, float, float] | None
) -> None:
    tree = make_tree("trn1.2xlarge")
    tree.write("sys/devices/virtual/neuron_device/neuron0/stats/power/utilization", text)
    read = device_of(open_source(tree)).power
    shown = (
        None
        if read is None
        else (read.sampled_at_unix_seconds, read.minimum_ratio, read.maximum_ratio, read.average_ratio)
    )
    assert shown == power


def test_ecc_as_far_as_the_hardware_and_driver_have_it(make_tree: MakeTree, open_source: Open) -> None:
    ecc = EccCounters(5, 4, 3, 2, 1)
    expected = {
        ("trn2.3xlarge", "2.30.2.0"): ecc,
        ("trn2.3xlarge", "2.29.0.0"): replace(ecc, mem_corrected_total=None, sram_corrected_total=None),
        ("trn1.2xlarge", "2.30.2.0"): replace(ecc, mem_corrected_total=None, sram_corrected_total=None),
        ("inf1.xlarge", "2.24.7.0"): EccCounters(),
    }
    for (instance_type, version), read in expected.items():
        tree = make_tree(instance_type, driver_version=version)
        tree.set_device(0, ecc=ecc)
        source = open_source(tree)
        assert device_of(source).ecc == read
        assert source.read().warnings == ()


def test_unhealthy_components_are_told(make_tree: MakeTree, open_source: Open) -> None:
    tree = make_tree("trn2.3xlarge")
    path = "sys/devices/virtual/neuron_device/neuron0/stats/hardware/health_status/unhealthy_components"
    tree.write(path, "hbm,link_host\n")
    source = open_source(tree)
    assert device_of(source).reported_health == ReportedHealth(("hbm", "link_host"))
    assert source.read().warnings == ()
    assert device_of(open_source(make_tree("trn2.3xlarge", driver_version="2.29.0.0"))).reported_health is None
