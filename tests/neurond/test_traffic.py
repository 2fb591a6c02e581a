"""The host's network, disks and RDMA ports, read from trees like the kernel's."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest
from neurond.system.host_metrics import RdmaReader, TrafficReader, read_ports, with_rates

from neurontools.model import Disk, NetworkInterface, RdmaPort
from tests.harness.waiting import wait_until

_NET = """Inter-|   Receive                |  Transmit
 face |bytes    packets errs drop|bytes    packets errs drop
    lo: 999 1    0    0    0     0          0         0 999 1    0    0    0     0       0          0
veth12:  50 1    0    0    0     0          0         0  60 1    0    0    0     0       0          0
  eth0:{received:>8} 1    0    0    0     0          0         0 {sent} 1    0    0    0     0       0          0
"""
_DISKS = """ 259 0 nvme0n1 10 0 {read} 5 7 0 {written} 9 0 1 2
 259 1 nvme0n1p1 10 0 77 5 7 0 88 9 0 1 2
   7 0 loop0 1 0 5 1 1 0 5 1 0 1 1
"""


class Host:
    """A tree with one card, one disk, and what is made of them."""

    def __init__(self, root: Path) -> None:
        self.sys, self.proc = root / "sys", root / "proc"
        (self.sys / "class/net/eth0/device").mkdir(parents=True)
        (self.sys / "class/net/veth12").mkdir()
        (self.sys / "block/nvme0n1/device").mkdir(parents=True)
        (self.sys / "block/loop0").mkdir()
        (self.proc / "net").mkdir(parents=True)
        self.write(1000, 2000, 10, 20)

    def write(self, received: int, sent: int, read: int, written: int) -> None:
        (self.proc / "net/dev").write_text(_NET.format(received=received, sent=sent))
        (self.proc / "diskstats").write_text(_DISKS.format(read=read, written=written))

    def traffic(self) -> TrafficReader:
        return TrafficReader(str(self.sys), str(self.proc))


@pytest.fixture
def host(tmp_path: Path) -> Host:
    return Host(tmp_path)


def test_hardware_alone_counts_where_there_is_any(host: Host) -> None:
    traffic = host.traffic()
    interfaces, disks = traffic.read(100.0)
    assert interfaces == (NetworkInterface("eth0", 1000, 2000),)
    assert disks == (Disk("nvme0n1", 5120, 10240),)
    host.write(1500, 1000, 14, 20)
    (interface,), (disk,) = traffic.read(105.0)
    assert (interface.received_bytes_per_second, interface.sent_bytes_per_second) == (100.0, None), "which fell"
    assert (disk.read_bytes_per_second, disk.written_bytes_per_second) == (409.6, 0.0)
    (host.sys / "class/net/eth1/device").mkdir(parents=True)
    with (host.proc / "net/dev").open("a") as file:
        file.write("eth1: 5 0 0 0 0 0 0 0 6 0 0 0 0 0 0 0\n")
    interfaces, _ = traffic.read(110.0)
    assert [interface.name for interface in interfaces] == ["eth0", "eth1"], "one that comes is seen"


def test_in_a_container_all_interfaces_but_lo_count_and_those_of_the_first_process_before_our_own(host: Host) -> None:
    (host.sys / "class/net/eth0/device").rmdir()
    interfaces, _ = host.traffic().read(100.0)
    assert [interface.name for interface in interfaces] == ["eth0", "veth12"]
    (host.proc / "1/net").mkdir(parents=True)
    (host.proc / "1/net/dev").write_text(_NET.format(received=7, sent=8))
    (interface, _), _ = host.traffic().read(100.0)
    assert interface.received_bytes_total == 7


@pytest.mark.parametrize(
    "text", ["", "\0\xff", "eth0:", "eth0: x " + "1 " * 20, "../..: " + "1 " * 20, ": " + "1 " * 20]
)
def test_rubbish_counts_nothing(host: Host, text: str) -> None:
    (host.proc / "net/dev").write_text(text, "latin-1")
    (host.proc / "diskstats").write_text(text, "latin-1")
    assert host.traffic().read(100.0) == ((), ())
    assert TrafficReader("/nothing", "/nothing").read(100.0) == ((), ())


def make_port(sys: Path, device: str = "rdmap0s6", **counters: int) -> Path:
    """A port of an EFA device; as in the kernel's tree, the class has links to the devices."""
    real = sys / "devices/pci0000:00" / device
    counters_directory = real / "ports/1/hw_counters"
    counters_directory.mkdir(parents=True)
    (real / "ports/1/state").write_text("4: ACTIVE\n")
    for name, count in counters.items():
        (counters_directory / name).write_text(f"{count}\n")
    (sys / "class/infiniband").mkdir(parents=True, exist_ok=True)
    (sys / "class/infiniband" / device).symlink_to(os.path.relpath(real, sys / "class/infiniband"))
    return counters_directory


def test_the_counters_of_a_port_are_those_of_the_efa_driver(tmp_path: Path) -> None:
    make_port(tmp_path, rx_bytes=5, tx_bytes=6, rdma_read_bytes=7, rdma_read_wr_err=1, rdma_write_wr_err=2, lifespan=12)
    make_port(tmp_path, "rdmap0s7", rx_drops=3, retrans_bytes=4, retrans_timeout_events=5, unresponsive_remote_events=6)
    assert read_ports(str(tmp_path / "class/infiniband")) == (
        RdmaPort("rdmap0s6", 1, "ACTIVE", 5, 6, 7, failed_requests_total=3),
        RdmaPort(
            "rdmap0s7",
            1,
            "ACTIVE",
            dropped_packets_total=3,
            retransmitted_bytes_total=4,
            retransmit_timeouts_total=5,
            unresponsive_remotes_total=6,
        ),
    )


@pytest.mark.parametrize("content", ["", "-1", "1e3", "999999999999999999999999", "\0"])
def test_a_counter_that_is_none_is_unknown(tmp_path: Path, content: str) -> None:
    (make_port(tmp_path) / "rx_bytes").write_text(content)
    (port,) = read_ports(str(tmp_path / "class/infiniband"))
    assert port.received_bytes_total is None


def test_rates_of_a_port() -> None:
    before = (RdmaPort("a", 1, received_bytes_total=100, sent_bytes_total=50),)
    (now,) = with_rates((RdmaPort("a", 1, received_bytes_total=300, sent_bytes_total=10),), before, 2.0)
    assert (now.received_bytes_per_second, now.sent_bytes_per_second) == (100.0, None)
    (new,) = with_rates((RdmaPort("b", 1, received_bytes_total=300),), before, 2.0)
    assert new.received_bytes_per_second is None


def test_ports_are_read_beside_everything_else(tmp_path: Path) -> None:
    reader = RdmaReader(str(tmp_path))
    assert reader.read(0.0) == ()
    make_port(tmp_path, rx_bytes=5)
    (port,) = wait_until(lambda: reader.read(time.monotonic()))
    assert port.received_bytes_total == 5
    assert reader.read(time.monotonic() + 1000.0) == (), "they are too old to be shown"
