"""Measures the CPU time of the kernel log reader, the audit log and the actions in a tick of the daemon."""

from __future__ import annotations

import tempfile
import time
from pathlib import Path

from measuring import Figure, compile_sources, report
from neurond.actions import ActionSettings, FindingActions
from neurond.journal.state_files import AuditLog, open_audit_file
from neurond.system.kernel_log import KernelLogReader
from neurond.verdicts.device_rules import KernelErrorRule
from neurond.verdicts.rule_evaluator import FindingDiff

from neurontools.driver.kernel_log import HardwareError, KernelRecord
from neurontools.model import Finding, Health, Severity
from neurontools.model.finding import FindingKind
from neurontools.model.health import HealthCriteria
from neurontools.testing.idle_host import idle_host

TICKS = 2000  # the daemon makes one a second
OTHERS_A_TICK = 20  # unrelated lines in the kernel log, as on a host that logs all day
A_FINDING_BEGINS_EVERY_TICKS = 60  # and ends after as many, as on a host with flapping findings
EVENTS = (TICKS - 1) // A_FINDING_BEGINS_EVERY_TICKS


def main() -> None:
    compile_sources()
    quiet = idle_host("trn1.32xlarge")
    with tempfile.TemporaryDirectory() as directory:
        kernel_log = Path(directory, "kmsg")
        kernel_log.touch()
        noise = b"".join(KernelRecord(1, 1, f"eth0: frame {number}").line() for number in range(OTHERS_A_TICK))
        error = KernelRecord(1, 1, HardwareError("HBM_UNCORRECTABLE_ERROR", 3, 0).text()).line()
        log, errors, changes = KernelLogReader(str(kernel_log)), KernelErrorRule(), FindingDiff()
        audit = AuditLog(open_audit_file(f"{directory}/state", None))
        settings = ActionSettings(HealthCriteria(), frozenset(("begins", "ends")), ("/bin/true",), most_per_hour=3600)
        actions = FindingActions(settings, audit)
        finding = Finding(FindingKind.ECC_UNCORRECTED, Severity.CRITICAL, "1 error", "move it", 1.0, (3,), part="hbm")
        healths = Health(tuple(range(16))), Health(tuple(range(16)), (), (finding,))

        def watch_log(number: int) -> None:
            with kernel_log.open("ab") as kernel:
                kernel.write(noise if number % 1000 else noise + error)

        def read_log(_number: int) -> None:
            tuple(errors.update(quiet, log.read(), 300.0))

        def act(number: int) -> None:
            health = healths[number // A_FINDING_BEGINS_EVERY_TICKS % 2]
            audit.record_attaches(quiet, (), 1.0)
            began, ended = changes.update(health)
            audit.record_findings(began, ended, 1.0)
            actions.submit(began, ended, quiet)

        log_seconds = 0.0
        for number in range(TICKS):
            watch_log(number)
            began_seconds = time.process_time()
            read_log(number)
            log_seconds += time.process_time() - began_seconds
        began_seconds = time.process_time()
        for number in range(TICKS):
            act(number)
        while audit_lines(directory) < EVENTS * 2:
            time.sleep(0.01)
        act_seconds = time.process_time() - began_seconds  # threads included
        actions.close()
        audit.close()
    report(
        "the kernel's log, the audit and actions, of one core at a tick a second",
        [
            Figure(
                f"kernel log, {OTHERS_A_TICK} lines of others a second", 100 * log_seconds / TICKS, "%", "at most 0.05"
            ),
            Figure(
                "audit and actions, a finding begins or ends a minute", 100 * act_seconds / TICKS, "%", "at most 0.05"
            ),
        ],
    )


def audit_lines(directory: str) -> int:
    """Returns the number of lines in the audit: findings and completed actions."""
    return Path(directory, "state/audit.jsonl").read_bytes().count(b"\n")


if __name__ == "__main__":
    main()
