"""Power, energy and cost of processes: from the power of devices, measured or simulated, to the outputs."""

from __future__ import annotations

from dataclasses import replace

import pytest
from neurond.snapshots.energy import EnergyMeter
from neurond.sources.simulated_power import BUSY_RATIO, IDLE_RATIO

from neurontools.model import PowerUtilization, Snapshot, SourceKind
from neurontools.views.consumption import consumption
from neurontools.views.drawing.figures import Figures
from neurontools.views.drawing.lines import TextPage, plain_text
from neurontools.views.drawing.render_context import RenderContext
from neurontools.views.host_page import host_page
from neurontools.views.overview_page import vcpu_section
from neurontools.views.process_details import process_facts
from neurontools.views.query_fields import OutputFormat, parse_fields, query_rows, query_text
from neurontools.views.top_document import top_document
from tests.harness.scenario_host import STARTED_AT_UNIX_SECONDS, ScenarioHost

WATTS = 400.0
PRICE = 1.34375  # trn1.2xlarge, on demand
MINUTES = (0.0, 20.0, 35.0, 50.0, 65.0, 80.0, 95.0)  # from 05 s of a minute to 40 s of the next but one


def lines_of(page: TextPage) -> list[str]:
    return [plain_text(line) for line in page.lines]


def at_minute(host: ScenarioHost) -> Snapshot:
    """Returns the snapshot after two ends of minutes. The first minute is not full, so it has no power."""
    snapshots = [host.at(seconds) for seconds in (*MINUTES, 116.0, 130.0)]
    assert all(device.power is None for snapshot in snapshots[:-2] for device in snapshot.devices)
    return snapshots[-1]


def test_simulated_power_follows_the_load_in_full_minutes_and_is_marked() -> None:
    snapshot = at_minute(ScenarioHost("trn1.2xlarge", neuroncores=1, device_max_watts=WATTS))
    (power,) = (device.power for device in snapshot.devices)
    assert power is not None
    assert power.sampled_at_unix_seconds % 60 == 0
    half = IDLE_RATIO + (BUSY_RATIO - IDLE_RATIO) * 0.45  # one of two cores is about 90 % busy
    assert IDLE_RATIO < power.minimum_ratio <= power.average_ratio <= power.maximum_ratio < BUSY_RATIO
    assert power.average_ratio == pytest.approx(half, abs=0.03)
    context = RenderContext.from_snapshot(snapshot)
    shown = "\n".join(lines_of(host_page(context, 120, 36)))
    assert f"{power.average_ratio * WATTS:,.0f} W in all" in shown
    assert "simulated" in shown.split("Power of devices")[1].splitlines()[0]
    assert "simulated" in lines_of(vcpu_section(context, 160))[0].split("power up to")[1]
    without = ScenarioHost("trn1.2xlarge")
    assert all(device.power is None for device in [without.at(second) for second in (*MINUTES, 116.0)][-1].devices)


def test_processes_share_power_by_busy_time_and_their_energy_adds_up() -> None:
    host = ScenarioHost("trn1.2xlarge", device_max_watts=WATTS)
    at_minute(host)
    snapshot = [host.at(seconds) for seconds in (150.0, 176.0, 200.0, 236.0)][-1]
    (power,) = (device.power for device in snapshot.devices)
    first, second = snapshot.processes
    assert power is not None
    assert first.power_ratio is not None
    assert second.power_ratio is not None
    assert first.power_ratio + second.power_ratio == pytest.approx(power.average_ratio)
    assert 0.4 < first.power_ratio / power.average_ratio < 0.6
    whole = consumption(snapshot.processes, snapshot)
    minutes_kwh = 2 * power.average_ratio * WATTS / 60_000  # two counted minutes of about the same power
    assert whole.energy_kwh == pytest.approx(minutes_kwh, rel=0.1)
    assert whole.cost_usd == pytest.approx(PRICE * 236.0 / 3600)
    document = top_document(snapshot)
    (job,), (row, _) = document.jobs, document.processes
    assert (job.power_ratio, job.power_watts) == (whole.power_ratio, whole.power_watts)
    assert (job.energy_kwh, job.cost_usd) == (whole.energy_kwh, whole.cost_usd)
    assert document.devices[0].power_average_watts == power.average_ratio * WATTS
    fields = parse_fields("neuroncore.index,process.watts,process.energy,process.cost")
    lines = query_text(fields, query_rows(snapshot, None, None, (), of_cores=True), OutputFormat()).splitlines()
    assert lines[1] == (f"0,{first.power_ratio * WATTS:.1f} W,{row.energy_kwh:.4f} kWh,{PRICE * 118.0 / 3600:.4f} USD")
    shown = process_facts(RenderContext.from_snapshot(snapshot), Figures(snapshot).by_pid[first.pid])
    facts = {name: text for name, text, _ in shown}
    share = f"{first.power_ratio:.1%} of one device's maximum, by busy time"
    assert facts["power"] == f"{first.power_ratio * WATTS:,.0f} W (simulated), {row.energy_kwh:.3f} kWh so far, {share}"
    assert facts["cost"] == "$0.04 (simulated) so far: 1 of 2 cores of trn1.2xlarge, list price $1.34 an hour"


def measured(host: ScenarioHost, seconds: float, average_ratio: float, *, frozen: bool = False) -> Snapshot:
    """A snapshot of a host whose driver measured this power in the minute before `seconds`."""
    snapshot = host.at(seconds, frozen=frozen)
    power = PowerUtilization(STARTED_AT_UNIX_SECONDS + seconds, average_ratio, average_ratio, average_ratio)
    devices = tuple(replace(device, power=power) for device in snapshot.devices)
    return replace(snapshot, devices=devices, source=SourceKind.SYSFS)


def test_measured_power_without_watts_gives_no_energy_in_kwh_and_idle_holders_share_it() -> None:
    host, meter = ScenarioHost("trn1.2xlarge", neuroncores=1), EnergyMeter()
    first = meter.derive(measured(host, 60.0, 0.5))
    assert first.processes[0].power_ratio is None  # the daemon has not seen this minute from its start
    (process,) = meter.derive(measured(host, 120.0, 0.5, frozen=True)).processes
    assert (process.power_ratio, process.energy_full_power_seconds) == (0.5, 30.0)
    snapshot = meter.derive(measured(host, 180.0, 0.25))
    (process,) = snapshot.processes
    assert (process.power_ratio, process.energy_full_power_seconds) == (0.25, 45.0)
    found = consumption(snapshot.processes, snapshot)
    assert (found.power_ratio, found.power_watts, found.energy_kwh) == (0.25, None, None)
    silent = meter.derive(host.at(240.0))
    assert (silent.processes[0].power_ratio, silent.processes[0].energy_full_power_seconds) == (None, 45.0)


def test_a_share_is_unknown_if_the_busy_time_of_a_held_core_is() -> None:
    host, meter = ScenarioHost("trn1.2xlarge"), EnergyMeter()
    for seconds in (60.0, 120.0):
        snapshot = measured(host, seconds, 0.5)
        unread, *others = snapshot.cores
        found = meter.derive(replace(snapshot, cores=(replace(unread, busy_seconds_total=None), *others)))
    assert [process.power_ratio for process in found.processes] == [None, None]
    assert consumption(found.processes, found).power_ratio is None
