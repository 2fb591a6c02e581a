"""The report of neuron-diag as text, document and metrics, for hosts in which something of each kind is wrong."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from neurontools.diagnose.host_checks import CheckContext
from neurontools.diagnose.host_state import DeviceState, HostState
from neurontools.diagnose.level1 import reportable_results, run_host_tests
from neurontools.diagnose.level3 import Link, judged_links, judged_load
from neurontools.diagnose.results import DiagReport, Outcome, TestResult, report_document, report_metrics, report_text
from neurontools.diagnose.table import TESTS
from neurontools.driver.environment import Roots
from neurontools.model.finding import Finding, FindingKind, Health, Severity
from neurontools.util.version import __version__
from tests.harness.pictures import is_as_stored, rounded

STORED = Path(__file__).parent / "golden" / "reports.txt"
GIB = 1 << 30
NAMES = [*(test.name for test in TESTS if test.level == 1), "power"]
FINDINGS = [
    Finding(kind, list(Severity)[number % len(Severity)], f"a {kind}", "mend it", 9.0, (number % 8,), part="matmul")
    for number, kind in enumerate(FindingKind)
]
FINDINGS += [
    Finding(kind, Severity.WARNING, f"a {kind} of the host", "mend it", 9.0, part="power")
    for kind in (FindingKind.ECC_CORRECTED, FindingKind.IDLE, FindingKind.TEST_FAILED, "unheard-of")
]
HEALTH = Health(tuple(range(10)), (8,), tuple(FINDINGS), ("its counters can't be read",))
DEVICES = {
    index: DeviceState(index, index % 5, used_bytes, 32 * GIB, is_held=index == 8)
    for index, used_bytes in enumerate((GIB, 2 * GIB, None, 0, 0, 0, 0, 0, 3 * GIB))
}
STATE = HostState(
    "/run/neurond.sock", "trn1.32xlarge", False, tuple(range(10)), True, DEVICES, {}, {}, HEALTH, "0.0.9", 3.0, 1.0, ()
)


def hosts(roots: Roots) -> Iterator[tuple[HostState, dict[str, str]]]:
    """The states of hosts, each with its environment variables."""
    yield STATE, {"NEURON_RT_NUM_CORES": "many"}
    healthy = {index: replace(device, hbm_used_bytes=0) for index, device in DEVICES.items()}
    yield replace(STATE, health=Health(tuple(range(9))), devices=healthy, expected_indices=tuple(range(9))), {}
    yield replace(STATE, health=None, is_simulated=True, warnings=("the kernel log can't be read",)), {}
    yield replace(STATE, health=None, daemon_version="", age_seconds=99.0, instance_type="trn9.large"), {}


def executed() -> Iterator[TestResult]:
    """Results of levels 2 and 3, two of a kind on some places."""
    yield from (TestResult("matmul", Outcome.PASS, "exact", "", core // 2, core) for core in (0, 1, 2, 7))
    for core, outcome in ((0, Outcome.PASS), (1, Outcome.PASS), (2, Outcome.FAIL)):
        yield TestResult("speed", outcome, "\x1b[2J", "", 0, core, 1e12 * (core + 1), 95e12, "FLOP/s", "catalog: x")
    yield TestResult("hbm", Outcome.NOT_RUN, "lost", "wait", 3, injected=True)
    lines = {number: {"outcome": "pass", "measured": rate} for number, rate in enumerate((9e9, 4e9, 9.5e9, 5e9))}
    links = [Link(0, peer) for peer in range(1, 6)]
    yield from judged_links(links, {**lines, 4: {"outcome": "fail", "reason": "a bit flipped"}}, "again")
    yield from judged_links(links, {2: {"outcome": "pass", "measured": 1e9}}, "again")
    rates = enumerate((1e12, 1e12, 1.61e12, 1.59e12))
    load = [TestResult("sustained", Outcome.PASS, "right", "", 0, core, rate, unit="FLOP/s") for core, rate in rates]
    load.append(TestResult("sustained", Outcome.FAIL, "wrong", "", 0, 4, 9e12))
    for is_simulated in (True, False):
        yield from judged_load(load, {0: 1.6e12, 1: 1.7e12, 2: 1e12}, is_simulated=is_simulated)


def reports(directory: Path) -> Iterator[str]:
    roots = Roots.from_environment({"NEURONTOOLS_SYSFS_ROOT": str(directory)})
    for state, environment in hosts(roots):
        context = CheckContext(environment, roots, state.socket_path)
        results = [*run_host_tests(state, context, NAMES, range(10))]
        kind = state.instance_type, state.is_simulated
        yield from forms(DiagReport(1, *kind, 10, 5.0, 0.25, "", "Nothing.", tuple(results)))
        failed, passed = reportable_results(results)
        yield " ".join(f"{result.test} {result.device_index}" for result in failed) + f"; {len(passed)} passed"
    yield from forms(DiagReport(3, None, True, None, 5.0, 1.25, "torch", "All.", (*executed(),), "neurond keeps them"))


def forms(report: DiagReport) -> Iterator[str]:
    yield report_text(report)
    document = report_document(report)
    yield from (rounded({name: value}) for name, value in document.items() if name != "results")
    yield from map(rounded, document["results"][::20])
    yield report_metrics(report)


def test_reports_are_as_stored(tmp_path: Path) -> None:
    """The file has each line once."""
    lines = dict.fromkeys("\n".join(reports(tmp_path)).replace(__version__, "VERSION").splitlines())
    assert is_as_stored("\n".join(lines), STORED), "look at the difference; then UPDATE_GOLDEN=1 writes it"
