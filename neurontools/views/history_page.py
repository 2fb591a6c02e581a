"""The history page: the recent past of a device or one of its cores, and of the whole host."""

from __future__ import annotations

from neurontools.text import units
from neurontools.views.drawing.core_grid import heading
from neurontools.views.drawing.gauge import sparkline
from neurontools.views.drawing.line import Line, Page, Run, Target, cell, fit, width_of
from neurontools.views.drawing.plots import plot_with_scale
from neurontools.views.drawing.scene import Scene

_MOST_SAMPLES = 3700


def history_page(scene: Scene, width: int, height: int) -> Page:
    """Plots of what is chosen; up and down choose the device, left and right the core."""
    page = Page()
    series = scene.series
    page.append(_device_bar(scene, width))
    if series is None or not series.samples:
        page.add(fit((("  no past is known yet", "dim"),), width))
        return page
    count = min(series.count_within(scene.window_seconds), _MOST_SAMPLES)
    if height >= 12:
        page.add(*_whole(scene, width, count))
    device = scene.device_index
    per_device = scene.snapshot.instance.physical_cores_per_device
    first, cores = device * per_device, per_device
    name = f"ND {device}"
    for core in scene.figures.cores:
        if core.index == scene.core_index and core.device_index == device:
            first, cores, name = core.cores[0].index, len(core.cores), f"ND {device} NC {core.index}"
    memory = scene.snapshot.devices[device].memory_bytes if device < len(scene.snapshot.devices) else 0
    memory = memory * cores // per_device if per_device else memory
    plots = (
        (f"{name} utilization", series.core_utilization(first, cores, count), 1.0, _percent, "spark"),
        (f"{name} device memory", series.core_memory(first, cores, count), float(memory), _bytes, "memory"),
        (f"{name} FLOPS", series.core_flops(first, cores, count), None, units.flops_text, "spark"),
    )
    room = height - len(page.lines)
    shown = plots[: max(1, min(len(plots), room // 3))]
    across = 1 if width < 140 else len(shown)
    each = room // (1 if across > 1 else len(shown))
    if across == 1:
        for title, values, highest, text, style in shown:
            page.add(*plot_with_scale(scene, title, values, highest, text, width, each, style))
        return page
    part = width // across
    blocks = [
        plot_with_scale(scene, title, values, highest, text, part, each, style)
        for title, values, highest, text, style in shown
    ]
    for row in range(each):
        page.add(fit(tuple(run for block in blocks if row < len(block) for run in block[row]), width))
    return page


def _percent(value: float) -> str:
    return units.percent_text(value, 0)


def _bytes(value: float) -> str:
    return units.bytes_text(int(value))


def _device_bar(scene: Scene, width: int) -> Page:
    """Which device and which core."""
    page = Page([heading(scene, "History", width, f"l: last {units.duration_text(scene.window_seconds)}")])
    devices: list[Run] = [(" Device ", "label")]
    left = 8
    of_tab = {device for figures in scene.figures.shown(scene.pid) for device in figures.process.device_indices}
    for device in scene.snapshot.devices:
        text = f" {device.index} "
        is_of_tab = scene.pid is not None and device.index in of_tab
        style = "mine" if device.index == scene.device_index else "text" if is_of_tab else "dim"
        devices.append((text, style))
        page.targets.append(Target(1, left, left + width_of(text), "device", str(device.index)))
        left += width_of(text)
    cores: list[Run] = [(" Core   ", "label"), (" all ", "mine" if scene.core_index is None else "dim")]
    left = 13
    for core in scene.figures.cores:
        if core.device_index == scene.device_index:
            text = f" NC{core.index} "
            cores.append((text, "mine" if core.index == scene.core_index else "dim"))
            page.targets.append(Target(2, left, left + width_of(text), "core", str(core.index)))
            left += width_of(text)
    page.add(fit(devices, width), fit(cores, width))
    page.list_count, page.list_height = len(scene.snapshot.devices), 4
    return page


def _whole(scene: Scene, width: int, count: int) -> list[Line]:
    """What the tab shows, the whole host or a process, in three sparklines."""
    series = scene.series
    if series is None:
        return []
    room = max(1, width - 38)
    if scene.pid is None:
        capacity = float(sum(device.memory_bytes for device in scene.snapshot.devices)) or 1.0
        executions = series.total_executions(count)
        utilization = series.total_utilization(count)
        memory = series.total_memory(count)
    else:
        executions = series.process_executions(scene.pid, count)
        utilization = series.process_utilization(scene.pid, count)
        memory = series.process_memory(scene.pid, count)
        capacity = max((value for value in memory if value is not None), default=0.0) or 1.0
    highest = max((value for value in executions if value is not None), default=0.0) or 1.0
    whole = "all cores" if scene.pid is None else f"PID {scene.pid}"
    rows = (
        (whole, utilization, 1.0, _percent(utilization[-1]) if utilization[-1] is not None else "-"),
        ("device memory", memory, capacity, "-" if memory[-1] is None else _bytes(memory[-1])),
        ("executions", executions, highest, "-" if executions[-1] is None else f"{executions[-1]:.1f}/s"),
    )
    return [
        fit(
            (
                (f" {name:<14}", "label"),
                (sparkline(_spread(values, room), room, scene.glyphs, top), "spark"),
                (" " + cell(text, 20), "text"),
            ),
            width,
        )
        for name, values, top, text in rows
    ]


def _spread(values: list[float | None], width: int) -> list[float | None]:
    """At most `width` values: of longer ones the highest of each part."""
    if len(values) <= width:
        return values
    from neurontools.views.drawing.gauge import resample

    return resample(values, width)
