"""A host of which all is known that an output shows, each number another one."""

from __future__ import annotations

from dataclasses import fields, replace
from typing import Any, TypeVar

from neurontools import model
from neurontools.model import Snapshot
from neurontools.model.execution import LatencyCounts
from tests.harness.scenario_host import ScenarioHost
from tests.harness.training_process import ADVICE, OPERATORS

_Counted = TypeVar("_Counted")


def numbered(kind: type[_Counted], first: int, **known: Any) -> _Counted:
    """Returns an object whose fields with a unit have numbers that differ."""
    values: dict[str, Any] = {}
    for at, field in enumerate(fields(kind), first):  # type: ignore[arg-type]
        if field.name.endswith("_ratio"):
            values[field.name] = at / 128
        elif field.name.endswith("seconds_total"):
            values[field.name] = at + 0.5
        elif field.name.endswith("bytes_total"):
            values[field.name] = at << 24
        elif field.name.endswith(("_total", "_bytes")):
            values[field.name] = at
        elif field.name.endswith("_per_second"):
            values[field.name] = at * 1.25
    return kind(**(values | known))


def full_host(first: int = 14, last: int = 15) -> list[Snapshot]:
    """Returns the snapshots of these seconds. Everything is known of the last one."""
    host = ScenarioHost("trn1.2xlarge", "ecc-burst", neuroncores=1, device_max_watts=400.0)
    *before, now = (host.at(float(second)) for second in range(first, last + 1))
    return [*before, _with_everything(now)]


def _with_everything(now: Snapshot) -> Snapshot:
    process = replace(
        now.processes[0],
        uid=1000,
        user='ro"ot',
        command="/usr/bin/python3 -u train.py --lr 0.1",
        synthetic=False,
        host_memory=model.HostMemory(tensors_bytes=4096),
        resident_bytes=1 << 20,
        cpu_user_seconds_total=7.5,
        cpu_system_seconds_total=1.875,
        vcpu_user_ratio=0.5,
        vcpu_system_ratio=0.125,
        attribution=model.Attribution("a" * 64, "trainer", "u", "pod-1", "ml", "77"),
        job=model.Job("torchrun exp1", 2, 4, "0123456789ab", 2, 2),
        executions=numbered(model.ExecutionCounters, 285),
        errors=numbered(model.ErrorCounters, 1),
        training=numbered(
            model.TrainingCounters,
            7,
            compiling_since_seconds=now.taken_at_seconds - 12,
            last_step_at_seconds=now.taken_at_seconds - 3,
            collective_since_seconds=now.taken_at_seconds - 4,
            latest_collective="all-reduce",
            checkpointing_since_seconds=now.taken_at_seconds - 2,
        ),
        training_rates=numbered(model.TrainingRates, 1),
        recent_steps=model.RecentSteps(16, (0.5, 0.25, 0.0, 0.0, 0.0, 0.0), 0.25, 0.25),
        served_models=(_served(now),),
        operators=OPERATORS,
        advice=ADVICE,
        power_ratio=0.25,
        energy_full_power_seconds=7200.0,
    )
    finding = model.Finding(
        *("ecc_corrected", model.Severity.WARNING, "HBM corrects errors", "watch it", now.taken_at_unix_seconds - 9),
        device_indices=(0,),
        pid=process.pid,
        part="hbm",
        job="torchrun exp1",
        injected=True,
    )
    held, free = now.cores
    device = now.devices[0]
    return replace(
        now,
        instance=replace(now.instance, ultraserver_id="us-1"),
        host=replace(
            now.host,
            network_interfaces=(numbered(model.NetworkInterface, 3, name="eth0"),),
            disks=(numbered(model.Disk, 5, name="nvme0n1"),),
            rdma_ports=tuple(
                numbered(model.RdmaPort, first, device=f"rdmap0s{first}", port=1, state=state)
                for first, state in ((7, "ACTIVE"), (8, "DOWN"))
            ),
        ),
        processes=(process,),
        cores=(
            replace(
                held,
                execution_started_at_unix_seconds=now.taken_at_unix_seconds - 2,
                status=numbered(model.StatusCounters, 1),
                reset_requests_total=3,
                reset_failures_total=1,
            ),
            replace(free, candidate_pids=(process.pid,)),
        ),
        devices=(
            replace(
                device,
                serial_number="0x1234",
                ecc=numbered(model.EccCounters, 2),
                power=model.PowerUtilization(1.0, 0.125, 0.75, 0.5),
                host_memory=model.HostMemory(dma_buffers_bytes=8192),
                reported_health=model.ReportedHealth(("hbm",)),
            ),
        ),
        health=model.Health((0,), (), (finding,)),
        ended=_ended(now),
        injected_faults=(model.InjectedFault(4, "hbm-corrected", model.FaultState.HOLDS, (0,), None, None, 1.0),),
        pod_allocations=(model.PodAllocation("idle", "ml", "c", device_indices=(0,), neuroncore_indices=(1,)),),
        warnings=("the kubelet has not answered for 7 s",),
        daemon_vcpu_ratio=0.002,
        daemon_resident_bytes=45 << 20,
    )


def _served(now: Snapshot) -> model.ServedModel:
    counts = LatencyCounts()
    for milliseconds in (1, 5, 5, 7, 100):
        counts.add(milliseconds / 1000)
    latency = model.LatencyPercentiles(*(0.125 * (at + 1) for at in range(8)))
    return model.ServedModel(
        *("llm", (model.ModelPlacement(0, 1.5, 4096, 2048, "w"),), 100, 2, 50, 400, True, 2.5, 3),
        last_request_at_seconds=now.taken_at_seconds - 2,
        total_latency_histogram=counts.histogram(),
        tokens_total=900,
        rates=model.ServedModelRates(10.0, 5.0, 8.0, 0.025, latency, latency, 90.0, latency, latency),
    )


def _ended(now: Snapshot) -> tuple[model.EndedProcess, ...]:
    end = now.taken_at_unix_seconds - 60
    whole = numbered(
        model.EndedProcess,
        20,
        pid=77,
        uid=1001,
        user="ann",
        command="python eval.py",
        tag="eval",
        job="Slurm job 5",
        synthetic=False,
        began_at_unix_seconds=end - 7200,
        ended_at_unix_seconds=end,
        neuroncore_count=2,
        logical_neuroncore_config=1,
        device_indices=(0,),
        peak_device_memory_bytes=3 << 30,
        executions=numbered(model.ExecutionCounters, 11),
        errors=numbered(model.ErrorCounters, 2),
        exit_status=-9,
        counts_are_final=False,
    )
    well = replace(whole, pid=78, utilization_ratio=0.75, ended_at_unix_seconds=end - 3600, exit_status=0)
    unknown = model.EndedProcess(79, 1002, "bob", "", "79", None, False, end - 60, end + 30, 1, 1)
    return whole, replace(well, counts_are_final=True, lives_on=True), unknown
