"""Sections of the pages about devices over time and place: history, heat map and topology."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

from neurontools.client.samples import HostQuantity
from neurontools.model import Severity
from neurontools.model.health import sentence
from neurontools.util import units
from neurontools.util.units import ranges_text
from neurontools.views.drawing.core_grid import owner_text
from neurontools.views.drawing.lines import printable
from neurontools.views.drawing.plots import backfill_text, bytes_label, percent_label, window_text
from neurontools.views.drawing.render_context import SEVERITY_STYLES, RenderContext
from neurontools.views.history_page import shown_cores
from neurontools.views.topology_page import DeviceArrangement, arrange_devices
from neurontools.views.topology_picture import ultraserver_text
from neurontools.web.charts import Chart, LinkedDevice, charts, core_class, heat_map, legend, link_picture
from neurontools.web.nodes import Node, node
from neurontools.web.tables import PageColumn, fact_list, section, table

SEVERITY_NAMES = {Severity.CRITICAL: "critical", Severity.WARNING: "warning", Severity.NOTICE: "notice"}
"""Names of severities, which are also CSS classes."""

Address = Callable[..., str]
"""Returns the URL of a page: its name ("" for this one), and the options that change."""


def history_of_host(context: RenderContext, address: Address) -> Node:
    """Builds the charts of the whole host."""
    capacity = float(sum(device.memory_bytes for device in context.snapshot.devices))
    shown = (
        Chart("Utilization of all NeuronCores", HostQuantity("utilization_ratio"), 1.0, percent_label),
        Chart("HBM in use", HostQuantity("memory_bytes"), capacity, bytes_label),
    )
    more = node("a", "More charts", href=address("history"), class_="more")
    return section("Last minutes", charts(context, shown), name="charts", note=past_note(context), more=more)


def past_note(context: RenderContext) -> str:
    """Returns the time that the charts show, or a note while history is loaded."""
    return backfill_text(context) or window_text(context.window_seconds)


@dataclass(frozen=True, slots=True)
class _DeviceRow:
    index: int
    values: dict[str, str]


def topology_sections(context: RenderContext, address: Address) -> Iterator[Node]:
    """Builds the sections of the topology page."""
    snapshot, figures = context.snapshot, context.figures
    if not snapshot.devices:
        yield section("NeuronLink", node("p", "no devices", class_="dim"), name="links")
        return
    plan = arrange_devices(context, 80)
    chosen = context.device_index
    placed = []
    for row, devices in enumerate(plan.rows):
        for column, index in enumerate(devices):
            ratio = figures.device_utilization[index]
            is_held = any(core.owner_pids for core in figures.cores if core.device_index == index)
            is_missing = index in figures.missing_devices
            style = "missing" if is_missing else core_class(ratio, is_held, context.thresholds.idle_below_ratio)
            hops = plan.hops(chosen, index)
            far = "" if index == chosen else " no path" if hops is None else f" {units.counted(hops, 'hop')}"
            text = ("missing" if is_missing else units.percent_text(ratio, 0)) + far
            link = address("", device=index) + "#device"
            placed.append(LinkedDevice(index, column, row, style, text, link, index == chosen))
    place = ultraserver_text(snapshot.instance)
    yield section(
        f"NeuronLink: {plan.name}",
        node("p", place) if place else None,
        link_picture(placed, plan.links, f"Devices and their links: {plan.name}"),
        legend(),
        name="links",
        note="choose a device to see the hops from it",
    )
    yield _chosen_device(context, plan, address)
    columns: list[PageColumn[_DeviceRow]] = [
        PageColumn(
            "Device", lambda row: f"ND {row.index}", 0, True, link=lambda row: address("", device=row.index) + "#device"
        )
    ]
    rows = [_DeviceRow(device.index, _device_values(context, device.index)) for device in snapshot.devices]
    for at, name in enumerate(rows[0].values):
        columns.append(PageColumn(name, lambda row, name=name: row.values[name], max(0, at - 1), at == 0))  # type: ignore[misc]
    yield section("All devices", table("All devices", columns, rows, ""), name="devices")


def _device_values(context: RenderContext, index: int) -> dict[str, str]:
    device, figures = context.snapshot.devices[index], context.figures
    verdict = next((each for each in context.verdicts if each.device_index == index), None)
    is_missing = index in figures.missing_devices
    ecc = device.ecc
    hbm, sram = (
        f"{units.count_text(corrected)} / {units.count_text(uncorrected)}"
        for corrected, uncorrected in (
            (ecc.mem_corrected_total, ecc.mem_uncorrected_total),
            (ecc.sram_corrected_total, ecc.sram_uncorrected_total),
        )
    )
    return {
        "Health": "missing" if is_missing else (verdict and verdict.severity_name) or "unknown",
        "Utilization": units.percent_text(figures.device_utilization[index], 1),
        "HBM": units.bytes_text(figures.device_used_bytes[index]),
        "HBM size": units.UNKNOWN if is_missing else units.memory_size_text(device.memory_bytes),
        "ECC of HBM, corrected / not": hbm,
        "ECC of SRAM, corrected / not": sram,
        "BDF": device.bdf or units.UNKNOWN,
        "NUMA": units.UNKNOWN if device.numa_node is None else str(device.numa_node),
        "Linked to": ranges_text(device.connected_to) or units.UNKNOWN,
    }


def _chosen_device(context: RenderContext, plan: DeviceArrangement, address: Address) -> Node:
    index = context.device_index
    device = context.snapshot.devices[index]
    by_hops: dict[int, list[int]] = {}
    for other in range(len(context.snapshot.devices)):
        if hops := plan.hops(index, other):
            by_hops.setdefault(hops, []).append(other)
    reach = "; ".join(
        f"{units.counted(hops, 'hop')}: ND {ranges_text(found)}" for hops, found in sorted(by_hops.items())
    )
    facts = [(name, text, "text") for name, text in _device_values(context, index).items() if name != "Linked to"]
    facts.insert(1, ("Links", reach or "no links to other devices", "text"))
    for verdict in context.verdicts:
        if verdict.device_index == index:
            for finding in verdict.findings:
                text = f"{printable(sentence(finding, context.snapshot))}. Next step: {printable(finding.action)}"
                facts.append(
                    (
                        SEVERITY_NAMES.get(finding.severity, "notice"),
                        text,
                        SEVERITY_STYLES.get(finding.severity, "text"),
                    )
                )
    for core in context.figures.cores:
        if core.device_index == index:
            text = f"{units.percent_text(core.utilization_ratio, 1)}, {units.flops_text(core.flops_per_second)}, "
            facts.append(
                (f"NC {core.index}", text + owner_text(context.figures, core), "dim" if core.is_free else "text")
            )
    if device.inferred_fields:
        facts.append(("Inferred", ", ".join(device.inferred_fields), "dim"))
    more = node("a", "Its history", href=address("history", device=index), class_="more")
    return section(f"ND {index}", fact_list(facts), name="device", more=more)


def history_sections(context: RenderContext, address: Address) -> Iterator[Node]:
    """Builds the sections of the history page."""
    snapshot = context.snapshot
    yield history_of_host(context, address)
    device = context.device_index
    per_device = snapshot.instance.physical_cores_per_device
    first, cores, name = device * per_device, per_device, f"ND {device}"
    of_device = [core for core in context.figures.cores if core.device_index == device]
    for core in of_device:
        if core.index == context.core_index:
            first, cores, name = core.cores[0].index, len(core.cores), f"ND {device}, NC {core.index}"
    memory = snapshot.devices[device].memory_bytes if device < len(snapshot.devices) else 0
    memory = memory * cores // per_device if per_device else memory
    chosen = (range(first, first + max(1, cores)),)
    shown = (
        Chart("Utilization", HostQuantity("utilization_ratio", chosen), 1.0, percent_label),
        Chart("HBM", HostQuantity("memory_bytes", chosen), float(memory) or None, bytes_label),
        Chart("FLOPS", HostQuantity("flops_per_second", chosen), None, units.flops_text),
    )
    devices = [
        (f"ND {each.index}", address("", device=each.index, core=None) + "#device", each.index == device)
        for each in snapshot.devices
    ]
    choices = [("all cores", address("", core=None) + "#device", context.core_index is None)]
    choices += [
        (f"NC {core.index}", address("", core=core.index) + "#device", core.index == context.core_index)
        for core in of_device
    ]
    yield section(
        name,
        _choice("Device", devices),
        _choice("NeuronCore", choices),
        charts(context, shown),
        name="device",
        note=past_note(context),
    )


def _choice(name: str, choices: Iterable[tuple[str, str, bool]]) -> Node:
    links = [node("a", text, href=link, aria_current="true" if is_on else None) for text, link, is_on in choices]
    return node("nav", *links, aria_label=name, class_="choice")


def heatmap_sections(context: RenderContext, _address: Address) -> Iterator[Node]:
    """Builds the section of the heat map page."""
    cores = shown_cores(context)
    note = f"{units.counted(len(cores), 'NeuronCore')}, {past_note(context)}"
    yield section("Utilization of every NeuronCore over time", heat_map(context, cores), name="heat", note=note)
