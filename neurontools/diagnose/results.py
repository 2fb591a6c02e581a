"""Results of neuron-diag: outcomes, the report as text, JSON and metrics, and the exit code."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from neurontools.util.errors import EXIT_USAGE
from neurontools.util.terminal import escape_controls
from neurontools.util.units import byte_rate_text, counted, flops_text, percent_text, ranges_text
from neurontools.util.version import __version__

TYPE_CHECKING = False  # replaces typing.TYPE_CHECKING, whose import takes several milliseconds
if TYPE_CHECKING:
    from collections.abc import Iterable

    from neurontools.diagnose.document import DiagDocument

EXIT_TEST_FAILED = 1  # the code of neuron-healthcheck for an unhealthy host
EXIT_NOT_KNOWN = EXIT_USAGE  # its code for unknown health, and for invalid options


class Outcome(StrEnum):
    """Outcome of one test on one device."""

    PASS = "pass"  # noqa: S105 - no password
    WARN = "warn"  # works, but somebody should look
    FAIL = "fail"
    SKIP = "skip"  # does not apply here, or others hold the core
    NOT_RUN = "could not run"


@dataclass(frozen=True, slots=True)
class TestResult:
    """Outcome of a test on the host, a device or a core.

    `expected` is the value that `measured` is compared with, and `source` says where it comes from. Both numbers have
    the unit `unit`. With `is_finding`, the result repeats a finding of the daemon. A result on the link between two
    devices has the second one in `peer_device_index`.
    """

    __test__ = False  # pytest collects classes of this name

    test: str
    outcome: Outcome
    reason: str
    action: str = ""
    device_index: int | None = None
    neuroncore_index: int | None = None
    measured: float | None = None
    expected: float | None = None
    unit: str = ""
    source: str = ""
    injected: bool = False
    is_finding: bool = False
    peer_device_index: int | None = None


@dataclass(frozen=True, slots=True)
class DiagReport:
    """All results of one run.

    `stack` names the software that computed; "" if nothing was executed. `proves` says what a pass proves. `kept` says
    whether the daemon keeps the failed tests as findings; "" if it has nothing to keep.
    """

    level: int
    instance_type: str | None
    is_simulated: bool | None
    device_count: int | None
    began_at_unix_seconds: float
    seconds: float
    stack: str
    proves: str
    results: tuple[TestResult, ...]
    kept: str = ""

    @property
    def exit_code(self) -> int:
        """0 if no test failed, EXIT_TEST_FAILED if one did, else EXIT_NOT_KNOWN if one could not run."""
        outcomes = {result.outcome for result in self.results}
        if Outcome.FAIL in outcomes:
            return EXIT_TEST_FAILED
        return EXIT_NOT_KNOWN if Outcome.NOT_RUN in outcomes or Outcome.PASS not in outcomes else 0

    @property
    def summary(self) -> str:
        """One sentence without a full stop: "2 of 30 tests failed: counters on device 3"."""
        failed = [result for result in self.results if result.outcome is Outcome.FAIL]
        parts = []
        if failed:
            first = failed[0]
            more = f" and {len(failed) - 1} more" if len(failed) > 1 else ""
            parts.append(f"{counted(len(failed), 'test')} failed: {first.test}{_on(first)}{more}")
        for outcome, text in (
            (Outcome.NOT_RUN, "could not run"),
            (Outcome.WARN, "passed with a warning"),
            (Outcome.PASS, "passed"),
            (Outcome.SKIP, "skipped"),
        ):
            count = sum(result.outcome is outcome for result in self.results)
            if count:
                parts.append(f"{count} {text}")
        return ", ".join(parts) or "no test ran"


def report_text(report: DiagReport) -> str:
    """Returns the report as text. Equal results of several devices are one line."""
    lines = [f"neuron-diag {__version__}, level {report.level}: {_host_text(report)}"]
    rows = [
        (group.first.test, str(group.first.outcome), _place_text(group), group) for group in _grouped(report.results)
    ]
    widths = [max((len(row[column]) for row in rows), default=0) + 2 for column in range(3)]  # type: ignore[arg-type]
    for test, outcome, place, group in rows:
        result = group.first
        measured = _measured_text(group, is_simulated=report.is_simulated is True)
        mark = " [injected]" if result.injected else ""
        lines.append(
            f"{test:<{widths[0]}}{outcome:<{widths[1]}}{place:<{widths[2]}}{escape_controls(result.reason)}{measured}{mark}"
        )
        if result.action:
            lines.append(f"{'':<{sum(widths)}}do: {escape_controls(result.action)}")
    stack = [f"Computed by {report.stack}."] if report.stack else []
    kept = [report.kept] if report.kept else []
    return "\n".join((*lines, report.summary, *kept, *stack, report.proves, ""))


def report_document(report: DiagReport) -> DiagDocument:
    """Returns the report as a JSON object, with one result for each test and device or core."""
    return {
        "version": __version__,
        "level": report.level,
        "instance_type": report.instance_type,
        "simulated": report.is_simulated,
        "devices": report.device_count,
        "began_at_unix_seconds": report.began_at_unix_seconds,
        "seconds": round(report.seconds, 3),
        "stack": report.stack or None,
        "proves": report.proves,
        "kept": report.kept or None,
        "exit_code": report.exit_code,
        "summary": report.summary,
        "results": [
            {
                "test": result.test,
                "outcome": str(result.outcome),
                "device_index": result.device_index,
                "peer_device_index": result.peer_device_index,
                "neuroncore_index": result.neuroncore_index,
                "reason": result.reason,
                "action": result.action or None,
                "measured": result.measured,
                "expected": result.expected,
                "unit": result.unit or None,
                "source": result.source or None,
                "injected": result.injected,
            }
            for result in report.results
        ],
    }


def report_metrics(report: DiagReport) -> str:
    """Returns the report for the textfile collector of Prometheus' node exporter."""
    ended_at_unix_seconds = report.began_at_unix_seconds + report.seconds
    counts = {outcome: sum(result.outcome is outcome for result in report.results) for outcome in Outcome}
    lines = [
        "# HELP neurontools_diag_results Results of the latest neuron-diag run, by outcome.",
        "# TYPE neurontools_diag_results gauge",
        *(
            f'neurontools_diag_results{{level="{report.level}",outcome="{outcome.replace(" ", "_")}"}} {count}'
            for outcome, count in counts.items()
        ),
        "# HELP neurontools_diag_exit_code Exit code of the latest neuron-diag run: 0 passed, 1 failed, 2 not known.",
        "# TYPE neurontools_diag_exit_code gauge",
        f'neurontools_diag_exit_code{{level="{report.level}"}} {report.exit_code}',
        "# HELP neurontools_diag_end_time_seconds Unix time at which the latest neuron-diag run ended.",
        "# TYPE neurontools_diag_end_time_seconds gauge",
        f'neurontools_diag_end_time_seconds{{level="{report.level}"}} {ended_at_unix_seconds:.3f}',
    ]
    return "\n".join((*lines, ""))


@dataclass(slots=True)
class _Group:
    """Results that differ only in their place and measured value."""

    first: TestResult
    devices: set[int]
    cores: set[int]
    links: set[str]
    measured: list[float]


def _grouped(results: Iterable[TestResult]) -> list[_Group]:
    groups: dict[tuple[object, ...], _Group] = {}
    for result in results:
        key = (result.test, result.outcome, result.reason, result.action, result.injected)
        if key not in groups:
            groups[key] = _Group(result, set(), set(), set(), [])
        group = groups[key]
        if result.peer_device_index is not None:
            group.links.add(f"{result.device_index}-{result.peer_device_index}")
        elif result.device_index is not None:
            group.devices.add(result.device_index)
        if result.neuroncore_index is not None:
            group.cores.add(result.neuroncore_index)
        if result.measured is not None:
            group.measured.append(result.measured)
    return list(groups.values())


def _measured_text(group: _Group, *, is_simulated: bool) -> str:
    """Returns the measured rates and the expected one, such as " (1.2 to 1.4 TFLOPS, peak 95.0 TFLOPS)"."""
    text = _RATE_TEXTS.get(group.first.unit)
    if text is None or not group.measured:
        return ""
    values = list(dict.fromkeys((text(min(group.measured)), text(max(group.measured)))))
    expected = group.first.expected
    word = "median" if group.first.source.startswith("median") else "peak"
    peak = f", {word} {text(expected)}" if expected is not None else ""
    return f" ({' to '.join(values)}{' simulated' if is_simulated else ''}{peak})"


_RATE_TEXTS = {"FLOP/s": flops_text, "bytes/s": byte_rate_text, "ratio of the maximum": percent_text}


def _place_text(group: _Group) -> str:
    if group.links:
        return counted(len(group.links), "link") if len(group.links) > 1 else f"link {min(group.links)}"
    name, indices = ("core", group.cores) if group.cores else ("device", group.devices)
    return f"{name}{'s' if len(indices) > 1 else ''} {ranges_text(sorted(indices))}" if indices else "host"


def _on(result: TestResult) -> str:
    if result.neuroncore_index is not None:
        return f" on core {result.neuroncore_index}"
    if result.peer_device_index is not None:
        return f" between devices {result.device_index} and {result.peer_device_index}"
    return "" if result.device_index is None else f" on device {result.device_index}"


def _host_text(report: DiagReport) -> str:
    if report.instance_type is None:
        return "no Neuron devices are known"
    simulated = ", simulated" if report.is_simulated else ""
    return f"{report.instance_type}{simulated}, {counted(report.device_count or 0, 'device')}"
