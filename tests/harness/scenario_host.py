"""A simulated host under a synthetic load whose clock the test moves: the same snapshots every time."""

from __future__ import annotations

from dataclasses import replace

from neurond.allocator import CoreAllocator
from neurond.snapshots.energy import EnergyMeter
from neurond.snapshots.rates import RateCalculator
from neurond.snapshots.sampler import build_process
from neurond.sources.simulated import STEP_SECONDS, SimulatedSource, SyntheticLoad, simulated_shape
from neurond.sources.simulated_power import SimulatedPower
from neurond.verdicts.rule_evaluator import RuleEvaluator

from neurontools import catalog
from neurontools.model import Host, Snapshot, VcpuTimes, VcpuUsage

STARTED_AT_UNIX_SECONDS = 1_767_323_045.0
STARTED_AT_SECONDS = 1000.0
MEMORY_BYTES = 512 * 2**30


class ScenarioHost:
    """`at(seconds)` is the snapshot of that moment after the start; call it with times that grow."""

    def __init__(
        self,
        instance_type: str,
        scenario: str = "steady",
        *,
        seed: int = 0,
        lnc: int | None = None,
        neuroncores: int | None = None,
        place: tuple[str, int] | None = None,
        interval_seconds: float = 1.0,
        device_max_watts: float | None = None,
    ) -> None:
        kind = catalog.load(instance_type)
        self.allocator = CoreAllocator(simulated_shape(kind, lnc))
        self.load = SyntheticLoad(
            self.allocator,
            scenario,
            seed=seed,
            neuroncores=neuroncores,
            peak_flops_per_core=kind.family.peak_flops_per_physical_core("bf16") or 0.0,
            interval_seconds=interval_seconds,
            started_at_seconds=STARTED_AT_SECONDS,
            started_at_unix_seconds=STARTED_AT_UNIX_SECONDS,
        )
        for holding in self.allocator.leases:
            holding.attached_at_unix_seconds = STARTED_AT_UNIX_SECONDS
        self._now_unix_seconds = STARTED_AT_UNIX_SECONDS
        power = None
        if device_max_watts is not None:
            power = SimulatedPower(self.allocator.shape, lambda: self._now_unix_seconds)
        self.source = SimulatedSource(kind, self.allocator, self.load.ecc, place=place, power=power)
        self._device_max_watts = device_max_watts
        self._rates = RateCalculator()
        self._energy = EnergyMeter()
        self.judge = RuleEvaluator()
        self._sequence = 0

    def at(self, seconds: float, *, frozen: bool = False) -> Snapshot:
        """The snapshot; `frozen`: the load stands still, as when every process is stopped."""
        now_seconds = STARTED_AT_SECONDS + seconds
        self._now_unix_seconds = STARTED_AT_UNIX_SECONDS + seconds
        if not frozen:
            self.load.advance(now_seconds)
        self._sequence += 1
        reading = self.source.read()
        shape = self.allocator.shape
        processes = tuple(
            build_process(holding, self.load.facts(holding), shape, now_seconds, 1.0)
            for holding in sorted(self.allocator.leases, key=lambda holding: holding.pid)
        )
        snapshot = Snapshot(
            sequence=self._sequence,
            taken_at_unix_seconds=STARTED_AT_UNIX_SECONDS + seconds,
            taken_at_seconds=now_seconds,
            interval_seconds=1.0,
            source=self.source.kind,
            instance=replace(
                self.source.instance,
                instance_id="i-0123456789abcdef0",
                instance_name="trainer",
                availability_zone="us-east-1a",
                availability_zone_id="use1-az1",
                region="us-east-1",
                ami_id="ami-0123456789abcdef0",
                subnet_id="subnet-0123456789abcdef0",
                device_maximum_watts=self._device_max_watts,
            ),
            devices=reading.devices,
            cores=reading.cores,
            processes=processes,
            host=_host(seconds),
            synthetic_load=self.load.scenario,
            daemon_version="0.0.0",
            daemon_pid=1,
        )
        return self.judge.evaluate(self._energy.derive(self._rates.derive(snapshot, processes_read=True)))


def _host(seconds: float) -> Host:
    usage = VcpuUsage(0.25, 0.0, 0.125, 0.5625, 0.03125, 0.0, 0.03125)
    return Host(
        vcpu_count=4,
        vcpu_average=usage,
        context_switches_total=10_000 + int(seconds * 500),
        memory_total_bytes=MEMORY_BYTES,
        memory_used_bytes=MEMORY_BYTES // 8,
        swap_total_bytes=0,
        swap_used_bytes=0,
        vcpu_times=(VcpuTimes(*(seconds * getattr(usage, state) for state in usage.__slots__)),) * 4,
    )


assert STEP_SECONDS == 0.25  # times in tests are multiples of it
