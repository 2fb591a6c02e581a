"""The pages of users, of the host and of health: what is shown where."""

from __future__ import annotations

from dataclasses import replace
from itertools import product

import pytest

from neurontools.model import (
    Disk,
    EndedProcess,
    ExecutionCounters,
    Host,
    NetworkInterface,
    PowerUtilization,
    RdmaPort,
    Snapshot,
    VcpuUsage,
)
from neurontools.views.drawing.lines import (
    THEMES,
    TextPage,
    fitting_columns,
    line_width,
    plain_text,
    row_line,
    title_line,
)
from neurontools.views.drawing.render_context import RenderContext
from neurontools.views.host_page import TRAFFIC_COLUMNS, host_page, traffic_rows
from neurontools.views.overview_page import vcpu_section
from neurontools.views.screen import page_named
from tests.harness.scenario_host import ScenarioHost

SNAPSHOT = ScenarioHost("trn1.2xlarge", "steady").at(30.0)
NOW = SNAPSHOT.taken_at_unix_seconds


def ended(pid: int, user: str | None, hours: float, **changes: object) -> EndedProcess:
    process = EndedProcess(
        pid, 1000, user, f"python train_{pid}.py", str(pid), "Slurm job 5", False, NOW - hours * 3600, NOW, 1, 1
    )
    return replace(process, **changes)  # type: ignore[arg-type]


ENDED = (
    ended(11, "ann", 2.0, utilization_ratio=0.9, exit_status=0, executions=ExecutionCounters(completed_total=1234)),
    ended(12, "ann", 1.0, utilization_ratio=0.3, exit_status=-9, ended_at_unix_seconds=NOW - 60),
    ended(13, "bob", 0.5),
)


def lines_of(page: TextPage) -> list[str]:
    return [plain_text(line).rstrip() for line in page.lines]


@pytest.mark.parametrize("page", ["usage", "overview", "processes", "health"])
def test_that_there_is_nothing_is_said_whole_or_with_a_sign_that_it_is_cut(page: str) -> None:
    context = RenderContext.from_snapshot(ScenarioHost("trn1.2xlarge", "idle").at(30.0), page=page)
    shown = (lines_of(page_named(page).draw(context, width, 30)) for width in (20, 120))
    nothing = ("no process", "no ended", "nobody holds", "no events")
    narrow, wide = ([line for line in lines if line.strip().startswith(nothing)] for lines in shown)
    assert narrow
    assert len(narrow) == len(wide)
    for cut, whole in zip(narrow, wide, strict=True):
        assert cut == whole or cut == whole[:19] + "…"


def busy_host() -> Snapshot:
    host = replace(
        SNAPSHOT.host,
        network_interfaces=(NetworkInterface("eth0", 1, 2, 2048.0, 1024.0),),
        disks=(Disk("nvme0n1", 1, 2, 0.0, 4096.0),),
        rdma_ports=(
            RdmaPort("rdmap0s6", 1, "ACTIVE", 10, 20, received_bytes_per_second=2.0**20),
            RdmaPort("rdmap0s7", 1, "DOWN", 10, 20, retransmit_timeouts_total=3),
        ),
    )
    power = PowerUtilization(NOW, 0.4, 0.6, 0.5)
    devices = tuple(replace(device, power=power) for device in SNAPSHOT.devices)
    return replace(SNAPSHOT, host=host, devices=devices, daemon_vcpu_ratio=0.002, daemon_resident_bytes=45 * 2**20)


def vcpus(count: int) -> tuple[VcpuUsage, ...]:
    return tuple(VcpuUsage(0.25, 0, 0.25, 0.5, 0, 0, 0) for _ in range(count))


def test_vcpus_of_any_number_fit() -> None:
    sizes = ((80, 20), (120, 32), (200, 46), (20, 3), (1, 1))
    for count, (width, height) in product((1, 8, 128, 192, 448), sizes):
        page = host_page(RenderContext.from_snapshot(busy_host(), page="host", vcpus=vcpus(count)), width, height)
        assert {line_width(line) for line in page.lines} == {width}, (count, height)


def test_the_overview_tells_which_device_draws_most() -> None:
    host = busy_host()
    first, *others = ScenarioHost("trn1.32xlarge", "idle").at(1.0).devices
    drawing = replace(others[3], power=PowerUtilization(NOW, 0.4, 0.9, 0.7))
    quiet = replace(first, power=PowerUtilization(NOW, 0.0, 0.95, 0.1))
    known = replace(host, devices=(quiet, drawing, *others[4:]))
    assert (
        f"power up to 70% (ND {drawing.index}, simulated)"
        in lines_of(vcpu_section(RenderContext.from_snapshot(known), 200))[0]
    )
    unknown = replace(host, devices=tuple(others))
    assert "power" not in lines_of(vcpu_section(RenderContext.from_snapshot(unknown), 200))[0]


@pytest.mark.parametrize(
    ("count", "text"), [(999_999, "999,999"), (1_000_000, "1.0M"), (12_345_678, "12.3M"), (2**64 - 1, "18.4E")]
)
def test_counts_of_any_size_are_told_whole(count: int, text: str) -> None:
    port = RdmaPort("rdmap0s6", 1, "ACTIVE", dropped_packets_total=count, failed_requests_total=count)
    (row,) = traffic_rows(Host(rdma_ports=(port,)))
    columns = fitting_columns(TRAFFIC_COLUMNS, 160)
    (quiet,) = traffic_rows(Host(rdma_ports=(RdmaPort("rdmap0s6", 1, "ACTIVE", failed_requests_total=0),)))
    styles = {style for shown in (quiet, row) for _, style in row_line(columns, shown, 160)}
    assert styles <= THEMES["dark"].styles.keys()
    titles, line = plain_text(title_line(columns, 160)), plain_text(row_line(columns, row, 160))
    for title in ("DROPS", "ERRORS"):
        end = titles.index(title) + len(title)
        assert line[:end].split()[-1] == text
