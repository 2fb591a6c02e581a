"""Data classes for models that a process serves: requests, latencies, queues, placement and generated tokens."""

from __future__ import annotations

from dataclasses import dataclass

from neurontools.model.execution import LatencyHistogram, LatencyPercentiles
from neurontools.model.representation import repr_of_fields


@dataclass(frozen=True, slots=True)
class ModelPlacement:
    """A served model, or its part, on one logical NeuronCore. A model that was loaded twice has two placements."""

    neuroncore_index: int  # index of the logical core on the host, under the LNC of the process
    load_seconds: float | None = None  # duration of loading, including the copy of the weights to the device
    device_memory_bytes: int | None = None  # device memory of the weights and the code
    weights_bytes: int | None = None
    weights_id: str | None = None  # equal weights have the same id; None: unknown


@dataclass(frozen=True, slots=True)
class ServedModelRates:
    """Rates and latencies of a served model in the last ten seconds. None means unknown, or that nothing ended."""

    requests_per_second: float | None = None
    calls_per_second: float | None = None
    batch_size: float | None = None  # mean number of samples in a call
    queue_wait_seconds: float | None = None  # mean wait of a request
    total_latency: LatencyPercentiles | None = None
    device_latency: LatencyPercentiles | None = None
    tokens_per_second: float | None = None
    time_to_first_token: LatencyPercentiles | None = None
    time_per_output_token: LatencyPercentiles | None = None


@dataclass(frozen=True, slots=True)
class ServedModel:
    """A model that a process runs for requests, with counters since the process began to count.

    A *call* executes the model once, on a batch of samples. A *request* is a unit of work of the application, such as
    an HTTP request. If the application does not report requests, each call counts as one request.
    """

    name: str
    placements: tuple[ModelPlacement, ...] = ()  # by core; empty if the model is unloaded, or its cores are unknown
    requests_total: int = 0  # requests that ended, including failed ones
    failed_requests_total: int = 0
    calls_total: int = 0
    samples_total: int = 0  # sum of the batch sizes of all calls
    has_application_requests: bool = False  # whether the application reports requests; false: they are the calls
    queue_wait_seconds_total: float = 0.0  # sum of the waits of all requests before their execution
    queue_depth: int | None = None  # requests that wait now; None: not reported
    last_request_at_seconds: float | None = None  # CLOCK_MONOTONIC at the end of the last request; None: no request yet
    total_latency_histogram: LatencyHistogram = LatencyHistogram()  # completed requests, queue wait included
    device_latency_histogram: LatencyHistogram = LatencyHistogram()  # calls, time on the NeuronCore only
    tokens_total: int | None = None  # generated tokens; None: the model reports no tokens
    first_token_histogram: LatencyHistogram = LatencyHistogram()  # time from a request to its first token
    output_token_histogram: LatencyHistogram = LatencyHistogram()
    """Mean time of each output token after the first, one value for each request."""

    rates: ServedModelRates | None = None  # set by the daemon

    __repr__ = repr_of_fields("name", "requests_total", "calls_total", "queue_depth")
