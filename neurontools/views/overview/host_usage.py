"""The vCPU section: of the whole system and of the processes on the devices."""

from __future__ import annotations

from neurontools.util import units
from neurontools.views.drawing.core_grid import heading
from neurontools.views.drawing.figures import total
from neurontools.views.drawing.gauge import stacked_bar
from neurontools.views.drawing.line import Line, Page, Run, fit
from neurontools.views.drawing.scene import Scene
from neurontools.views.host.traffic import traffic_texts

_LABEL_CELLS = 20
_HEADING_CELLS = 26  # of the heading, and of the rule around it
_Ratios = tuple[float | None, float | None]  # user, system


def host_usage(scene: Scene, width: int, *, side_by_side: bool = False) -> Page:
    """System and runtime vCPU usage, each a bar of user and system parts; two lines and a heading, or one."""
    system, runtime = _ratios(scene)
    page = Page([heading(scene, "vCPU Utilization", width, _note(scene, width))])
    half = width // 2 if side_by_side else width
    first = fit(_usage(scene, "System vCPU Usage", system, half), half)
    second = fit(_usage(scene, "Runtime vCPU Usage", runtime, width - half if side_by_side else width), half)
    if side_by_side:
        page.add(fit((*first, *second), width))
    else:
        page.add(first, second)
    return page


def _note(scene: Scene, width: int) -> str:
    """How many vCPUs there are, what goes in and out of the host, and what devices draw, as far as there is room."""
    host = scene.snapshot.host
    parts = [f"{host.vcpu_count} vCPUs"] if host.vcpu_count else []
    for text in (*traffic_texts(host), *_power_texts(scene)):
        if sum(map(len, (*parts, text))) + 3 * len(parts) + _HEADING_CELLS <= width:
            parts.append(text)
    return ", ".join(parts)


def _power_texts(scene: Scene) -> tuple[str, ...]:
    """The device that draws most of its maximum, in the mean of the last full minute; () where none tells."""
    told = [(device.power.average_ratio, -device.index) for device in scene.snapshot.devices if device.power]
    if not told:
        return ()
    ratio, negative_index = max(told)
    return (f"power up to {units.percent_text(ratio, 0)} (ND {-negative_index})",)


def usage_text(scene: Scene, width: int) -> Line:
    """Both in one line without bars."""
    system, runtime = _ratios(scene)
    runs: list[Run] = [("vCPU  ", "label"), ("system ", "dim"), (_figure(system), "text")]
    return fit((*runs, ("  runtime ", "dim"), (_figure(runtime), "text"), ("  (user, system)", "dim")), width)


def _ratios(scene: Scene) -> tuple[_Ratios, _Ratios]:
    """User and system part of all vCPUs, in use by anybody and by the processes of the tab."""
    average = scene.snapshot.host.vcpu_average
    system: _Ratios = (None, None)
    if average is not None:
        system = (
            average.user_ratio + average.nice_ratio,
            average.system_ratio + average.io_wait_ratio + average.irq_ratio + average.soft_irq_ratio,
        )
    count = scene.snapshot.host.vcpu_count
    processes = scene.figures.processes(scene.pid)
    user = total(process.vcpu_user_ratio for process in processes)
    kernel = total(process.vcpu_system_ratio for process in processes)
    runtime = (
        user / count if user is not None and count else None,
        kernel / count if kernel is not None and count else None,
    )
    return system, runtime


def _figure(ratios: _Ratios) -> str:
    return f"[{_percent(ratios[0])},{_percent(ratios[1])}]"


def _usage(scene: Scene, label: str, ratios: _Ratios, width: int) -> Line:
    user, system = ratios
    figure = _figure(ratios)
    runs: list[Run] = [(label.ljust(_LABEL_CELLS), "text")]
    runs += stacked_bar(((user, "busy"), (system, "system")), width - _LABEL_CELLS - len(figure) - 2, scene.glyphs)
    runs.append((f" {figure} ", "text"))
    return tuple(runs)


def _percent(ratio: float | None) -> str:
    return "-".rjust(7) if ratio is None else f"{ratio * 100:6.2f}%"
