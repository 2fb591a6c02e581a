from __future__ import annotations

import os
from typing import Any

import psutil
import pytest
from neurond.system.host_reader import HostReader

from tests.harness.waiting import wait_until


def test_the_first_read_knows_levels_and_no_shares() -> None:
    host, warnings = HostReader().read()
    assert warnings == ()
    assert host.vcpu_count == os.cpu_count()
    assert host.vcpu_average is None
    assert len(host.vcpu_times) == os.cpu_count()
    assert host.memory_total_bytes == psutil.virtual_memory().total
    assert host.memory_used_bytes is not None
    assert 0 < host.memory_used_bytes < host.memory_total_bytes
    assert host.swap_total_bytes is not None
    assert host.context_switches_total is not None


def test_shares_of_vcpu_time_sum_to_one() -> None:
    reader = HostReader()
    reader.read()

    def measured() -> Any:
        sum(range(200_000))
        host, _ = reader.read()
        return host if host.vcpu_average else None

    host = wait_until(measured)
    shares = [getattr(host.vcpu_average, name) for name in host.vcpu_average.__slots__]
    assert sum(shares) == pytest.approx(1)
    assert all(0 <= share <= 1 for share in shares)


def test_shares_are_those_between_two_reads(monkeypatch: pytest.MonkeyPatch) -> None:
    def vcpu(user: float, idle: float) -> Any:
        zero = dict.fromkeys(("nice", "system", "iowait", "irq", "softirq", "steal", "guest", "guest_nice"), 0.0)
        return type(psutil.cpu_times())(user=user, idle=idle, **zero)

    reads = iter([[vcpu(10, 90), vcpu(0, 100)], [vcpu(11, 93), vcpu(4, 100)], [vcpu(12, 94)]])
    monkeypatch.setattr(psutil, "cpu_times", lambda percpu: next(reads))
    reader = HostReader()
    reader.read()
    host, _ = reader.read()
    assert host.vcpu_average is not None
    assert host.vcpu_average.user_ratio == 0.625
    assert [times.user_seconds_total for times in host.vcpu_times] == [11, 4]
    gone, _ = reader.read()
    assert (gone.vcpu_count, gone.vcpu_average) == (1, None), "a vCPU was taken away"


@pytest.mark.parametrize(
    ("function", "error", "unknown", "known"),
    [
        ("virtual_memory", OSError(13, "Permission denied"), "memory_total_bytes", "vcpu_count"),
        ("swap_memory", RuntimeError("no swap"), "swap_total_bytes", "memory_total_bytes"),
        ("cpu_times", psutil.AccessDenied(), "vcpu_count", "memory_total_bytes"),
    ],
)
def test_what_cannot_be_read_is_unknown_and_a_warning(
    function: str, error: Exception, unknown: str, known: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object, **__: object) -> None:
        raise error

    monkeypatch.setattr(psutil, function, fail)
    host, warnings = HostReader().read()
    assert getattr(host, unknown) is None
    assert getattr(host, known) is not None
    (warning,) = warnings
    assert "of the host can't be read: " in warning
