"""One invented process of a synthetic load: a rank of a data-parallel training on one logical core."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field, replace
from random import Random

from neurond.ownership.holding import CoreReport, Report
from neurontools import model
from neurontools.model import latency

MODEL_CODE_BYTES = 96 * 2**20
RUNTIME_MEMORY_BYTES = 16 * 2**20
_MODEL_ID = 10001
_CRUMBS_RATIO = 0.01


@dataclass(slots=True)
class Rank:
    """What one invented process would report. Scenarios change it step by step; `report` tells it."""

    index: int
    random: Random
    hbm_share_bytes: int  # its part of the HBM stack it allocates from
    peak_flops: float  # of its core, bf16
    memory: model.DeviceMemory = model.DeviceMemory()
    busy_seconds: float = 0.0
    flop: int = 0
    executions: int = 0
    errors: model.ErrorCounters = model.ErrorCounters()
    stuck_since_seconds: float | None = None  # since the start of the load: an execution that never ends
    last_execution_seconds: float | None = None
    latency_counts: dict[int, int] = field(default_factory=dict)
    latency_seconds: float = 0.0
    _owed_executions: float = 0.0

    def load_model(self, constants_ratio: float) -> None:
        """Loads the model; its constants take this share of the rank's HBM."""
        self.memory = replace(
            self.memory,
            constants_bytes=int(constants_ratio * self.hbm_share_bytes),
            model_code_bytes=min(MODEL_CODE_BYTES, self.hbm_share_bytes // 16),
            model_shared_scratchpad_bytes=self.hbm_share_bytes // 16,
            runtime_memory_bytes=min(RUNTIME_MEMORY_BYTES, self.hbm_share_bytes // 64),
        )

    def hold_tensors(self, ratio: float) -> None:
        """Makes its tensors take this share of its HBM."""
        self.memory = replace(self.memory, tensors_bytes=int(ratio * self.hbm_share_bytes))

    @property
    def most_tensors_ratio(self) -> float:
        """The share of its HBM that tensors can have beside the rest, but for the crumbs that no tensor fits in."""
        rest_bytes = (self.memory.total_bytes or 0) - (self.memory.tensors_bytes or 0)
        return (1 - _CRUMBS_RATIO) - rest_bytes / self.hbm_share_bytes

    def execute(self, now_seconds: float, step_seconds: float, utilization: float, latency_seconds: float) -> None:
        """Spends a step executing: so much of the time, each execution about so long."""
        busy_seconds = step_seconds * utilization
        self.busy_seconds += busy_seconds
        self.flop += int(busy_seconds * self.peak_flops * 0.4)
        self._owed_executions += busy_seconds / latency_seconds
        while self._owed_executions >= 1:
            self._owed_executions -= 1
            taken_seconds = latency_seconds * self.random.gauss(1.0, 0.03)
            bucket = latency.bucket_index(taken_seconds)
            self.latency_counts[bucket] = self.latency_counts.get(bucket, 0) + 1
            self.latency_seconds += max(0.0, taken_seconds)
            self.executions += 1
            self.last_execution_seconds = now_seconds

    def report(self, now_seconds: float, started_at_unix_seconds: float, measured_at_seconds: float) -> Report:
        """What the process tells at `now_seconds` since the start of the load."""
        counts = dict(sorted(self.latency_counts.items()))
        histogram = model.LatencyHistogram(tuple(counts), tuple(counts.values()), self.latency_seconds)
        last = self.last_execution_seconds
        stuck = self.stuck_since_seconds
        last_at = None if last is None else started_at_unix_seconds + last
        core = CoreReport(
            busy_seconds_total=self.busy_seconds,
            flop_total=self.flop,
            executions_total=self.executions,
            memory=self.memory,
            execution_started_at_unix_seconds=None if stuck is None else started_at_unix_seconds + stuck,
            last_execution_at_unix_seconds=last_at,
        )
        return Report(
            measured_at_seconds=measured_at_seconds,
            cores={0: core},
            models=(self._model(now_seconds, last_at),) if self.memory.model_code_bytes else (),
            host_memory=model.HostMemory(dma_buffers_bytes=2**20, tensors_bytes=4 * 2**20),
            executions=model.ExecutionCounters(completed_total=self.executions),
            errors=self.errors,
            total_latency_histogram=histogram,
            device_latency_histogram=histogram,
        )

    def _model(self, now_seconds: float, last_at_unix_seconds: float | None) -> model.LoadedModel:
        name = "synthetic/train_step.neff"
        part = replace(self.memory, tensors_bytes=0, model_shared_scratchpad_bytes=0)
        return model.LoadedModel(
            model_id=_MODEL_ID,
            name=name,
            uuid=hashlib.md5(name.encode(), usedforsecurity=False).hexdigest(),
            running=self.last_execution_seconds is not None and now_seconds - self.last_execution_seconds < 1.0,
            subgraphs=(model.Subgraph(0, 0, 0, part),),
            executions_total=self.executions,
            last_execution_at_unix_seconds=last_at_unix_seconds,
        )
