"""Level 1 of neuron-diag: judges what the driver, the daemon and the environment say. Executes nothing on a device."""

from __future__ import annotations

import os

from neurontools.diagnose.host_checks import (
    CheckContext,
    CheckLevel,
    CheckResult,
    examine_driver,
    examine_snapshot,
    examine_variables,
)
from neurontools.diagnose.results import Outcome, TestResult
from neurontools.model import health
from neurontools.model.finding import Finding, FindingKind, Severity
from neurontools.model.health import Owner
from neurontools.util.units import bytes_text

TYPE_CHECKING = False  # replaces typing.TYPE_CHECKING, whose import takes several milliseconds
if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator, Sequence

    from neurontools.diagnose.host_state import HostState

_USED_RATIO = 0.05  # of the HBM of a device that nobody holds; the driver itself uses less
_TEST_OF_FINDING: dict[str, str] = {
    FindingKind.DEVICE_MISSING: "devices",
    FindingKind.ECC_UNCORRECTED: "counters",
    FindingKind.ECC_REPAIRABLE: "counters",
    FindingKind.ECC_CORRECTED: "counters",
    FindingKind.UNHEALTHY_COMPONENT: "counters",
    FindingKind.CORE_ERRORS: "counters",
    FindingKind.RESET_FAILED: "counters",
    FindingKind.NEEDS_RESET: "counters",
    FindingKind.HARDWARE_ERRORS: "counters",
    FindingKind.KERNEL_ERROR: "kernel-log",
    FindingKind.WAS_RESET: "kernel-log",
    FindingKind.MEMORY_NEARLY_FULL: "memory",
    FindingKind.TEST_FAILED: "earlier-runs",
}
"""Test that reports each kind of finding. The test `processes` reports all other kinds."""
_OUTCOMES = {CheckLevel.OK: Outcome.PASS, CheckLevel.NOTE: Outcome.WARN}
_PASSED = {
    "devices": "is there, with its NeuronLinks",
    "counters": "no errors since the driver was loaded",
    "kernel-log": "no hardware error",
    "memory": "HBM is free",
    "processes": "no problem of a process",
    "earlier-runs": "no failed test of an earlier run",
}
_TESTS_OF_CALLER = ("daemon", "variables")  # their results depend on the user or the environment of the command
_HELD = "processes hold cores of the device"


def run_host_tests(
    state: HostState, context: CheckContext, names: Collection[str], device_indices: Sequence[int]
) -> Iterator[TestResult]:
    """Runs the tests of level 1 with these names. Judges only `device_indices`."""
    if "daemon" in names:
        yield from _daemon_results(state)
    if "driver" in names:
        yield from _host_results(state, "driver", examine_driver(context))
    if "variables" in names:
        problems = [check for check in examine_variables(context) if check.level is not CheckLevel.OK]
        yield from (
            _check_results("variables", problems)
            if problems
            else (TestResult("variables", Outcome.PASS, "the variables of the Neuron runtime are valid"),)
        )
    if "network" in names:
        yield from _network_results(state, context)
    for name in _PASSED:
        if name in names:
            yield from _device_results(state, name, device_indices, names)


def reportable_results(results: Iterable[TestResult]) -> tuple[list[TestResult], list[TestResult]]:
    """Returns the failed and the passed results that are about the host, and that the daemon does not know itself."""
    own = [result for result in results if not result.is_finding and result.test not in _TESTS_OF_CALLER]
    failed = [result for result in own if result.outcome is Outcome.FAIL]
    return failed, [result for result in own if result.outcome in (Outcome.PASS, Outcome.WARN)]


def _daemon_results(state: HostState) -> Iterator[TestResult]:
    checks = examine_snapshot(state.daemon_version, state.age_seconds, state.interval_seconds, state.warnings)
    return _check_results("daemon", checks, of_problem=Outcome.NOT_RUN)  # an old snapshot does not show the health


def _host_results(state: HostState, test: str, checks: Iterable[CheckResult]) -> Iterator[TestResult]:
    if state.is_simulated:
        yield TestResult(test, Outcome.SKIP, "the devices are simulated")
    else:
        yield from _check_results(test, checks)


def _check_results(
    test: str, checks: Iterable[CheckResult], of_problem: Outcome = Outcome.FAIL
) -> Iterator[TestResult]:
    for check in checks:
        outcome = of_problem if check.level is CheckLevel.PROBLEM else _OUTCOMES[check.level]
        yield TestResult(test, outcome, check.result, check.action)


def _network_results(state: HostState, context: CheckContext) -> Iterator[TestResult]:
    if state.is_simulated:
        yield TestResult("network", Outcome.SKIP, "the host is simulated")
        return
    from neurontools import catalog

    fact = catalog.load(state.instance_type).efa_bits_per_second if state.instance_type in catalog.names() else None
    if fact is None or not fact.value:
        yield TestResult("network", Outcome.SKIP, f"no EFA is documented for {state.instance_type}")
        return
    try:
        adapters = sorted(os.listdir(f"{context.roots.sys}/class/infiniband"))  # noqa: PTH208 - pathlib is slow
    except OSError:
        adapters = []
    gigabits = fact.value / 1e9
    if adapters:
        yield TestResult("network", Outcome.PASS, f"{len(adapters)} EFA adapters have their driver")
    else:
        yield TestResult(
            "network",
            Outcome.WARN,
            f"no EFA adapter; {state.instance_type} can have {gigabits:g} Gbit/s of EFA",
            "attach EFA interfaces and load the driver (modprobe efa), unless jobs stay on this host",
        )


def _device_results(
    state: HostState, test: str, device_indices: Sequence[int], names: Collection[str]
) -> Iterator[TestResult]:
    if state.health is None:
        reason = f"neurond {state.daemon_version or 'of an unknown version'} derives no findings"
        yield TestResult(test, Outcome.NOT_RUN, reason, "update neurond")
        return
    found = [
        finding
        for finding in state.health.findings
        if _TEST_OF_FINDING.get(finding.kind, "processes") == test
        and not (finding.kind == FindingKind.TEST_FAILED and finding.part in names)  # this run repeats the test
    ]
    for finding in found:
        if not finding.device_indices:
            yield _finding_result(test, finding, None)
    unknown = state.health.unknown_devices
    for index in device_indices:
        mine = [finding for finding in found if index in finding.device_indices]
        worst = max(mine, key=lambda finding: _SEVERITY[_finding_outcome(finding)], default=None)
        if worst is not None and _finding_outcome(worst) is not Outcome.PASS:
            yield _finding_result(test, worst, index)
        elif test == "counters" and index in unknown:
            yield TestResult(test, Outcome.NOT_RUN, unknown[index], "see neurond(8), REAL DEVICES", index)
        else:
            yield _own_result(state, test, index)


def _own_result(state: HostState, test: str, index: int) -> TestResult:
    """Returns the result of a test on a device without findings."""
    device = state.devices.get(index)
    if device is None:
        if test == "devices":
            action = "see dmesg for its failure; stop and start the instance to get another host"
            return TestResult(test, Outcome.FAIL, f"device {index} is missing", action, index)
        return TestResult(test, Outcome.SKIP, "the device is missing", "", index)
    if test == "devices" and state.has_links and not device.neighbour_count and not _lost_devices(state):
        return TestResult(test, Outcome.FAIL, "shows no NeuronLinks", "see dmesg; reload the driver", index)
    if test == "memory":
        return _memory_result(index, device.is_held, device.hbm_used_bytes, device.hbm_bytes)
    return TestResult(test, Outcome.PASS, _PASSED[test], "", index)


def _lost_devices(state: HostState) -> bool:
    """Returns whether a device is missing. The driver then lists no links, on any device."""
    return any(index not in state.devices for index in state.expected_indices)


def _memory_result(index: int, is_held: bool, used_bytes: int | None, hbm_bytes: int) -> TestResult:
    if is_held:
        return TestResult("memory", Outcome.SKIP, _HELD, "", index)
    if used_bytes is None:
        return TestResult(
            "memory", Outcome.NOT_RUN, "the use of HBM is not known", "see neurond(8), REAL DEVICES", index
        )
    values = {"measured": float(used_bytes), "expected": _USED_RATIO * hbm_bytes, "unit": "bytes"}
    if used_bytes > _USED_RATIO * hbm_bytes:
        reason = f"{bytes_text(used_bytes)} of HBM are in use, and no process holds the device"
        return TestResult("memory", Outcome.WARN, reason, "neuron-ls shows owners; reset the device", index, **values)  # type: ignore[arg-type]
    return TestResult("memory", Outcome.PASS, _PASSED["memory"], "", index, **values)  # type: ignore[arg-type]


_SEVERITY = {Outcome.PASS: 0, Outcome.WARN: 1, Outcome.FAIL: 2}


def _finding_outcome(finding: Finding) -> Outcome:
    """Returns the outcome of the test for a finding.

    A problem of the node is a failure, as for `neuron-healthcheck --problems node`. A problem that a user's process has
    is a warning. A notice about a device is a warning too.
    """
    if health.finding_owner(finding) is Owner.NODE:
        return Outcome.FAIL if finding.severity >= Severity.WARNING else Outcome.WARN
    return Outcome.WARN if finding.severity >= Severity.WARNING else Outcome.PASS


def _finding_result(test: str, finding: Finding, device_index: int | None) -> TestResult:
    return TestResult(
        test,
        _finding_outcome(finding),
        finding.reason,
        finding.action,
        device_index,
        finding.neuroncore_index,
        injected=finding.injected,
        is_finding=True,
    )
