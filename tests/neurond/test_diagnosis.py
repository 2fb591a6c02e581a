"""Failed tests of neuron-diag as findings of the daemon: how long they last, who may report them, what is refused."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from neurontools.diagnose.results import Outcome, TestResult
from neurontools.model.finding import FindingKind
from neurontools.rpc import neuron_pb2
from neurontools.rpc.call import RpcError, Status
from neurontools.rpc.diagnosis_calls import report_diagnosis
from tests.harness.command import calls
from tests.harness.hostile_user import HOSTILE, needs_two_users
from tests.harness.paths import PYTHONPATH
from tests.harness.running_daemon import RunningDaemon

REPORT = "/neurontools.v1.DiagnosisService/ReportDiagnosis"


def result(test: str, device_index: int | None, *, core: int | None = None, reason: str = "is broken") -> TestResult:
    action = "update it" if device_index is None else "replace it"
    return TestResult(test, Outcome.FAIL, reason, action, device_index, core)


@pytest.fixture
def daemon(shared_daemon: RunningDaemon) -> Iterator[RunningDaemon]:
    """The module's daemon, without findings of neuron-diag."""
    yield shared_daemon
    found = [*shared_daemon.findings(FindingKind.TEST_FAILED)]
    tests = ("matmul", "speed", "all-gather", "a", *map(str, range(70)))
    passed = [result(test, next(iter(each.device_indices), None)) for test in tests for each in found]
    assert report_diagnosis(shared_daemon.socket, 2, [], passed) == 0


def test_a_failed_test_is_a_finding_until_a_run_passes_it(daemon: RunningDaemon) -> None:
    failed = [
        result("matmul", 3, core=6),
        result("speed", 3, core=7),
        result("all-gather", None, reason="too\x1b[2Jold"),
    ]
    assert report_diagnosis(daemon.socket, 2, failed, [result("matmul", 3, core=7), result("matmul", 4)]) == 2
    on_host, on_device = sorted(daemon.findings(), key=lambda finding: finding.device_indices)
    assert on_device.reason == "matmul of neuron-diag level 2 failed: is broken; so did speed"
    assert (on_device.device_indices, on_device.neuroncore_index, on_device.action) == ((3,), 6, "replace it")
    assert (on_host.device_indices, on_host.reason) == ((), "all-gather of neuron-diag level 2 failed: too\\x1b[2Jold")
    checked = calls("neuron-healthcheck", {})("--socket", daemon.socket, "--problems", "node")
    assert checked.returncode == 1
    assert "of neuron-diag level 2 failed" in checked.stdout
    diag = calls("neuron-diag", {})
    level1 = diag("--socket", daemon.socket)
    assert level1.returncode == 1
    assert "2 tests failed: earlier-runs and 1 more" in level1.stdout
    assert "neurond keeps the failed tests as findings" in level1.stdout
    assert diag("--socket", daemon.socket, "--device", "4", "--test", "devices,earlier-runs").returncode == 1
    assert report_diagnosis(daemon.socket, 1, [], [result("all-gather", None)]) == 1
    assert diag("--socket", daemon.socket, "--device", "4").returncode == 0
    began_at_unix_seconds = on_device.began_at_unix_seconds
    assert report_diagnosis(daemon.socket, 2, [result("matmul", 3, core=6, reason="is still broken")], []) == 1
    (finding,) = daemon.findings()
    assert "is still broken" in finding.reason
    assert finding.began_at_unix_seconds == began_at_unix_seconds
    assert report_diagnosis(daemon.socket, 2, [], [result("matmul", 3)]) == 1
    assert [finding.part for finding in daemon.findings()] == ["speed"]
    assert report_diagnosis(daemon.socket, 2, [], [result("speed", 3)]) == 0
    assert daemon.findings() == []


def test_many_failed_tests_are_one_bounded_finding(daemon: RunningDaemon) -> None:
    failed = [result(str(number), 0, reason="x" * 10_000) for number in range(70)]
    assert report_diagnosis(daemon.socket, 9, failed, []) == 1
    (finding,) = daemon.findings()
    assert finding.part == "6"  # the 64 latest are kept
    assert finding.reason.endswith("; so did 7, 8, 9, 10, 59 more")
    assert len(finding.reason) < 600


@pytest.mark.parametrize(
    ("level", "results", "text"),
    [
        (0, [], "level must be from 1 to 9"),
        (10, [], "level must be from 1 to 9"),
        (1, [{"test": ""}], "1 to 64 small letters"),
        (1, [{"test": "a\n"}], "1 to 64 small letters"),
        (1, [{"test": "a", "device_index": 99}], "no device 99"),
        (1, [{"test": "a", "neuroncore_index": 2**31}], "neuroncore_index is above 65535"),
        (1, [{"test": "a"}] * 4096, "more than 4096 results"),
    ],
)
def test_an_invalid_run_changes_nothing(
    daemon: RunningDaemon, level: int, results: list[dict[str, Any]], text: str
) -> None:
    messages = [neuron_pb2.DiagnosisResult(test="a", failed=True)]
    messages += [neuron_pb2.DiagnosisResult(**each) for each in results]
    with pytest.raises(RpcError, match=text) as refused:
        daemon.call(REPORT, neuron_pb2.ReportDiagnosisRequest(level=level, results=messages))
    assert refused.value.code == Status.INVALID_ARGUMENT
    assert daemon.findings() == []


@pytest.mark.slow
@needs_two_users
def test_only_the_user_of_the_daemon_reports(daemon: RunningDaemon) -> None:
    Path(daemon.socket).chmod(0o666)
    Path(daemon.socket).parent.chmod(0o755)
    reports = (
        "import os, sys, grpc; from neurontools.rpc.diagnosis_calls import report_diagnosis\n"
        "from neurontools.diagnose.results import TestResult, Outcome\n"
        f"os.setgroups([]); os.setgid({HOSTILE}); os.setuid({HOSTILE})\n"
        "report_diagnosis(sys.argv[1], 2, [TestResult('matmul', Outcome.FAIL, 'is broken', '', 3)], [])"
    )
    done = subprocess.run(
        [sys.executable, "-c", reports, daemon.socket],
        env={"PYTHONPATH": PYTHONPATH},
        capture_output=True,
        text=True,
        check=False,
    )
    assert "refuses: only the user of the daemon may report results of neuron-diag" in done.stderr
    assert daemon.findings() == []
