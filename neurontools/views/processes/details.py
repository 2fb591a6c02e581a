"""One process: the facts about it, and plots of its recent past."""

from __future__ import annotations

from neurontools import catalog
from neurontools.client.history import quantities
from neurontools.model import Process, SourceKind, TrainingRates
from neurontools.model.training import STEP_PARTS
from neurontools.util import units
from neurontools.util.units import day_text, ranges_text
from neurontools.views.drawing.core_grid import heading
from neurontools.views.drawing.figures import ProcessFigures, total
from neurontools.views.drawing.line import Page, fact, foreign
from neurontools.views.drawing.plots import Plot, percent, size, stacked
from neurontools.views.drawing.scene import Scene
from neurontools.views.drawing.time_axis import time_axis
from neurontools.views.processes.columns import PLACE
from neurontools.views.processes.surroundings import surroundings_page
from neurontools.views.processes.time_page import time_page

COMPILING, ADVICE = "compiling", "advice"
_NAME_CELLS = 11  # the longest names are checkpoints and collectives
_LONG_WAIT_SECONDS = 2.0  # in a collective: less is told by the shares of step time


def when_text(unix_seconds: float | None) -> str:
    """A moment in local time, as month, day and clock; "-" for an unknown one."""
    return "-" if unix_seconds is None else day_text(unix_seconds)


def core_doubt(process: Process) -> str:
    """What isn't certain of the cores a process holds, in words; "" when they are known."""
    if "core_indices" in process.inferred_fields:
        return "its cores are inferred: it alone has their devices open"
    if not process.core_indices and process.runtime_version is not None and process.device_indices:
        return f"its cores are unknown: others have ND {ranges_text(process.device_indices)} open too"
    return ""


def process_details(scene: Scene, figures: ProcessFigures, width: int, height: int) -> Page:
    """One process: facts, then plots of its recent past."""
    if scene.is_time_shown:
        return time_page(scene, figures, width, height)
    process = figures.process
    title = f"Process {process.pid}  {foreign(process.tag, 60)}"
    page = Page([heading(scene, title, width, scene.key_hint("P where time goes, E environment, Esc back"))])
    latency = process.total_latency
    errors = process.errors
    host = process.host_memory
    facts = (
        ("command", foreign(process.command, 1000) or "-"),
        ("user", f"{foreign(process.user or '-', 40)} (uid {process.uid if process.uid is not None else '-'})"),
        *((("where", PLACE.text(figures)),) if process.attribution is not None else ()),
        (
            "started",
            (
                f"{when_text(process.started_at_unix_seconds)}, runs for {_run_time(scene, process)}, "
                f"attached {when_text(process.attached_at_unix_seconds)}"
            ),
        ),
        ("CPU", _cpu(process)),
        ("runtime", f"{foreign(process.runtime_version or '-', 40)}, LNC {process.logical_neuroncore_config}"),
        (
            "cores",
            f"NC {ranges_text(process.neuroncore_indices) or '-'} on ND {ranges_text(process.device_indices)}"
            + (f"; {doubt}" if (doubt := core_doubt(process)) else ""),
        ),
        (
            "now",
            (
                f"util {units.percent_text(figures.utilization_ratio)}  {units.flops_text(figures.flops_per_second)}  "
                f"MFU {units.percent_text(figures.mfu_ratio)} of {catalog.PEAK_DTYPE} peak"
            ),
        ),
        (
            "executions",
            (
                f"{units.rate_text(process.executions_per_second)}/s, "
                f"{'-' if process.executions is None else units.count_text(process.executions.completed_total)} "
                f"completed, {'-' if figures.failed_executions_total is None else figures.failed_executions_total} "
                "failed, "
                f"last {units.duration_text(figures.since_last_execution_seconds)} ago"
            ),
        ),
        (
            "latency",
            ("-" if process.executions is None or scene.snapshot.source is SourceKind.SYSFS else "nothing ran")
            if latency is None
            else "  ".join(
                f"{name} {units.duration_text(getattr(latency, f'{name}_seconds'))}"
                for name in ("p0", "p25", "p50", "p75", "p99", "p100")
            ),
        ),
        (
            "errors",
            "-"
            if errors is None
            else "  ".join(
                f"{name} {getattr(errors, f'{name}_total')}"
                for name in ("generic", "numerical", "transient", "model", "runtime", "hardware")
            ),
        ),
        (
            "memory",
            (
                f"device {units.bytes_text(figures.device_memory_bytes)}, host {units.bytes_text(host.total_bytes)} "
                f"of {units.bytes_text(process.resident_bytes)} resident"
            ),
        ),
        *_training_facts(figures),
        *_advice_facts(process),
        (
            "models",
            ", ".join(f"{foreign(m.name, 80)} ({'running' if m.running else 'loaded'})" for m in process.models[:4])
            or ("-" if scene.snapshot.source is SourceKind.SYSFS else "none"),
        ),
    )
    styles = {"errors": "bad" if figures.errors_total else "text", COMPILING: "warn", ADVICE: "warn"}
    for name, text in facts[: max(1, height - 2)]:
        page.add(fact(name, text, width, _NAME_CELLS, styles.get(name, "text")))
    if scene.surroundings is not None:
        # At least a third of the screen is for what was asked for.
        del page.lines[max(2, height * 2 // 3) :]
        page.append(surroundings_page(scene, scene.surroundings, width, height - len(page.lines)))
        return page
    axis = time_axis(scene, width)
    room = height - len(page.lines)
    if axis is None or room < 4:
        return page
    pid = process.pid
    plots = (
        Plot("Utilization", quantities.utilization(pid=pid), 1.0, percent),
        Plot("FLOPS", quantities.flops(pid=pid), None, units.flops_text),
        Plot("Device memory", quantities.memory(pid=pid), None, size),
        Plot("Executions a second", quantities.executions(pid=pid), None, units.rate_text),
        Plot("Latency p99", quantities.latency_p99(pid), None, units.duration_text),
    )
    page.add(*stacked(scene, plots, axis, width, room))
    return page


def _run_time(scene: Scene, process: Process) -> str:
    started = process.started_at_unix_seconds
    return units.duration_text(None if started is None else max(0.0, scene.snapshot.taken_at_unix_seconds - started))


def _cpu(process: Process) -> str:
    """Now, and since the process began: 200 % is two vCPUs."""
    now = total((process.vcpu_user_ratio, process.vcpu_system_ratio))
    user, system = process.cpu_user_seconds_total, process.cpu_system_seconds_total
    spent = total((user, system))
    return (
        f"{units.percent_text(now, 1)} of a vCPU (user {units.percent_text(process.vcpu_user_ratio, 1)}, system "
        f"{units.percent_text(process.vcpu_system_ratio, 1)}), {units.duration_text(spent)} so far"
    )


def _training_facts(figures: ProcessFigures) -> tuple[tuple[str, str], ...]:
    """What the process counts beside executions, a line for what there was."""
    counters, rates = figures.process.training, figures.process.training_rates or TrainingRates()
    if counters is None:
        return ()
    facts = []
    if figures.compiling_for_seconds is not None:
        facts.append((COMPILING, f"now, since {units.duration_text(figures.compiling_for_seconds)}"))
    parts = [part for part in STEP_PARTS if getattr(counters, part.counter)]  # those that there were
    shares = [(part.name, ratio) for part in parts if (ratio := getattr(rates, part.ratio)) is not None]
    if shares:
        facts.append(("step time", "  ".join(f"{name} {units.percent_text(ratio, 1)}" for name, ratio in shares)))
    if counters.steps_total:
        text = f"{units.rate_text(rates.steps_per_second)} steps/s, {units.count_text(counters.steps_total)} so far"
        if figures.since_last_step_seconds is not None:
            text += f"; last step {units.duration_text(figures.since_last_step_seconds)} ago"
        if counters.samples_total is not None:
            samples = units.count_text(counters.samples_total)
            text += f"; {units.rate_text(rates.samples_per_second)} samples/s, {samples} so far"
        facts.append(("training", text))
    if counters.input_wait_seconds_total is not None:
        waited = units.duration_text(counters.input_wait_seconds_total)
        facts.append(("input wait", f"{units.percent_text(rates.input_wait_ratio)} of the time, {waited} so far"))
    if counters.checkpoints_total:
        written = units.duration_text(counters.checkpoint_seconds_total)
        facts.append(("checkpoints", f"{units.count_text(counters.checkpoints_total)} in {written}"))
    if counters.compilations_total:
        seconds = units.duration_text(counters.compile_seconds_total)
        facts.append(("compiled", f"{units.count_text(counters.compilations_total)} graphs in {seconds}"))
    standing = figures.in_collective_for_seconds
    if standing is not None and standing >= _LONG_WAIT_SECONDS:
        kind = foreign(counters.latest_collective or "one", 40)
        facts.append(("collective", f"in {kind} since {units.duration_text(standing)}"))
    if counters.collectives_total:
        text = (
            f"{units.percent_text(rates.collective_ratio)} of the time, "
            f"{units.byte_rate_text(rates.collective_bytes_per_second)}; "
            f"{units.count_text(counters.collectives_total)} so far, "
            f"{units.bytes_text(counters.collective_bytes_total)}"
        )
        facts.append(("collectives", text))
    if counters.to_device_bytes_total or counters.from_device_bytes_total:
        text = (
            f"to device {units.byte_rate_text(rates.to_device_bytes_per_second)}, "
            f"{units.bytes_text(counters.to_device_bytes_total)} so far; "
            f"from device {units.byte_rate_text(rates.from_device_bytes_per_second)}, "
            f"{units.bytes_text(counters.from_device_bytes_total)} so far"
        )
        facts.append(("transfers", text))
    return tuple(facts)


def _advice_facts(process: Process) -> tuple[tuple[str, str], ...]:
    """What its script could do better, a line each; what to do is on the page of its time."""
    return tuple(
        (ADVICE, f"{foreign(each.rule)}{f' at {foreign(each.place)}' if each.place else ''}: {foreign(each.measured)}")
        for each in process.advice
    )
