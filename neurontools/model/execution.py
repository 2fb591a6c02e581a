"""What was executed: outcomes, errors and latencies of executions of loaded models."""

from __future__ import annotations

from dataclasses import dataclass

from neurontools.model.brief import showing_changes


@dataclass(frozen=True, slots=True)
class ExecutionCounters:
    """Finished executions by outcome, in the count of their process; every execution is counted in exactly one.

    The outcomes are those of `execution_summary` in neuron-monitor.
    """

    completed_total: int = 0
    completed_with_err_total: int = 0
    completed_with_num_err_total: int = 0
    timed_out_total: int = 0
    incorrect_input_total: int = 0
    failed_to_queue_total: int = 0

    __repr__ = showing_changes


@dataclass(frozen=True, slots=True)
class ErrorCounters:
    """Errors by their kind, in the count of their process, as in `error_summary` of neuron-monitor."""

    generic_total: int = 0
    numerical_total: int = 0
    transient_total: int = 0
    model_total: int = 0
    runtime_total: int = 0
    hardware_total: int = 0

    __repr__ = showing_changes


@dataclass(frozen=True, slots=True)
class StatusCounters:
    """Outcomes and errors of one core since the driver was loaded, under the driver's own names.

    Before driver 2.30 they move only when a process ends. None where the driver does not have the counter.
    """

    success_total: int | None = None
    failure_total: int | None = None
    timeout_total: int | None = None
    exec_bad_input_total: int | None = None
    hw_error_total: int | None = None
    execute_completed_with_error_total: int | None = None
    execute_completed_with_num_error_total: int | None = None
    generic_error_total: int | None = None
    resource_error_total: int | None = None
    resource_nc_error_total: int | None = None
    execute_failed_to_queue_total: int | None = None
    invalid_error_total: int | None = None
    unsupported_neff_version_total: int | None = None
    oob_error_total: int | None = None
    hw_collectives_error_total: int | None = None
    hw_hbm_ue_error_total: int | None = None
    hw_nc_ue_error_total: int | None = None
    hw_dma_abort_error_total: int | None = None
    execute_sw_nq_overflow_total: int | None = None
    execute_sw_semaphore_error_total: int | None = None
    execute_sw_event_error_total: int | None = None
    execute_sw_psum_collision_total: int | None = None
    execute_sw_sequencer_fatal_total: int | None = None
    hw_repairable_hbm_ue_error_total: int | None = None

    __repr__ = showing_changes


@dataclass(frozen=True, slots=True)
class LatencyPercentiles:
    """Percentiles of the latencies of one period, seconds; within the relative error of `LatencyHistogram`."""

    p0_seconds: float
    p1_seconds: float
    p25_seconds: float
    p50_seconds: float
    p75_seconds: float
    p99_seconds: float
    p100_seconds: float


@dataclass(frozen=True, slots=True)
class LatencyHistogram:
    """All latencies in the count of their process, in buckets whose bounds `neurontools.model.latency` has.

    Only buckets that hold something are listed, by ascending index. Histograms subtract and add, so a reader can have
    the percentiles of any period between two snapshots.
    """

    bucket_indices: tuple[int, ...] = ()
    bucket_counts: tuple[int, ...] = ()
    sum_seconds: float = 0.0

    __repr__ = showing_changes
