"""A host with a missing device, findings, injected faults, and ranks that compile, serve, are silent or are missing."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from neurontools import model
from neurontools.model import Finding, Severity, Snapshot
from neurontools.model.process import Job
from tests.harness.full_host import full_host
from tests.harness.scenario_host import ScenarioHost

_HALF = ScenarioHost("trn1.32xlarge", "steady", neuroncores=8)
_HALF.at(29.0)
_BEFORE = _HALF.at(30.0)  # 8 ranks on ND 0 to 3


def _finding(kind: str, severity: Severity, *devices: int, **fields: Any) -> Finding:
    reason = "a reason of so many words that it does not fit on the line of a screen with eighty cells for its text"
    return Finding(kind, severity, reason, "what to do", _BEFORE.taken_at_unix_seconds - 90, devices, **fields)


def faulty_host() -> Snapshot:
    """Returns a host with a missing device, findings of each severity, and ranks of each kind."""
    first, second, third, *others, last = _BEFORE.processes
    now = _BEFORE.taken_at_seconds
    training = model.TrainingCounters(5, compiling_since_seconds=now - 12, last_step_at_seconds=now - 30)
    changed = (
        replace(
            first,
            training=training,
            training_rates=model.TrainingRates(2.5, 80.0, 0.125, 2.0**20, 1024.0, 0.25),
        ),
        replace(
            second,
            training=training,
            executions_per_second=123_456.7,
            served_models=full_host()[-1].processes[0].served_models * 4,
            inferred_fields=("core_indices",),
            synthetic=False,
            reporting=False,
        ),
        replace(third, command="python evaluate.py --all", job=Job("evaluation", 3, 9, None, 2, 5), tag="\x1b[1m語"),
    )
    last = replace(
        last,
        command="python evaluate.py --all",
        job=Job("evaluation", 4, 9, None, 2, 5),
        user=None,
        runtime_version=None,
        started_at_unix_seconds=None,
        attached_at_unix_seconds=None,
        total_latency=None,
        executions=None,
        host_memory=model.HostMemory(),
    )
    ratios = (0.97, 0.92, 0.6, 0.03, 0.0, None)
    cores = tuple(
        replace(core, utilization_ratio=ratios[core.index] if core.index < len(ratios) else core.utilization_ratio)
        for core in _BEFORE.cores
        if core.device_index != 12
    )
    job = {"pid": first.pid, "pids": tuple(each.pid for each in _BEFORE.processes), "job": "synthetic load steady"}
    findings = (
        _finding("stuck", Severity.CRITICAL, 0, **job),
        _finding("slow_rank", Severity.NOTICE, 2, part="input wait", **(job | {"pid": others[0].pid})),
        _finding("ecc_corrected", Severity.WARNING, 1, part="hbm", injected=True),
        _finding("ecc_corrected", Severity.WARNING, 9),
        replace(_finding("clock", Severity.NOTICE), reason="the clock was set"),
        replace(_finding("idle", Severity.NOTICE, pid=77), reason="it is idle"),
    )
    fault = model.InjectedFault(7, "dma-abort", model.FaultState.HOLDS, (0,), None, None, 0.0, injected_by_pid=4)
    lost = replace(fault, number=8, kind="host-lost", device_indices=(), state=model.FaultState.WAITING)
    return replace(
        _BEFORE,
        processes=(*changed, *others, last),
        cores=cores,
        devices=tuple(
            replace(device, inferred_fields=("memory_bytes",)) if device.index == 1 else device
            for device in _BEFORE.devices
            if device.index != 12
        ),
        health=model.Health(tuple(range(16)), (12,), findings),
        injected_faults=(replace(fault, injected_by_uid=1000), lost),
        warnings=("the kubelet has not answered for 7 s", "the kernel log can't be read"),
    )
