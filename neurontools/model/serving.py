"""Data classes for models that a process serves: requests, latencies, queues, placement and generated tokens."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from neurontools.model.execution import LatencyHistogram, LatencyPercentiles
from neurontools.model.representation import repr_of_fields
from neurontools.util.units import max_known, sum_known


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

    @property
    def neuroncore_indices(self) -> tuple[int, ...]:
        """Indices of the logical cores that the model is loaded on, ascending."""
        return tuple(sorted({placement.neuroncore_index for placement in self.placements}))

    @property
    def device_memory_bytes(self) -> int | None:
        """Device memory of all placements; None if unknown for all of them."""
        return sum_known(placement.device_memory_bytes for placement in self.placements)

    @property
    def load_seconds(self) -> float | None:
        """The longest duration of loading the model on a core; None if unknown for all of them."""
        return max_known(placement.load_seconds for placement in self.placements)

    __repr__ = repr_of_fields("name", "requests_total", "calls_total", "queue_depth")


def request_models(served_models: Iterable[ServedModel]) -> tuple[ServedModel, ...]:
    """Returns the served models whose requests make up the load of a process, without those that got none.

    If the application reports requests of some models, these are the load. The others then run inside its requests.
    """
    found = [served for served in served_models if served.requests_total]
    of_application = [served for served in found if served.has_application_requests]
    return tuple(of_application or found)


def requests_total(served_models: Iterable[ServedModel]) -> int | None:
    """Returns the number of requests that a process's served models ended; None if the process serves no models."""
    served_models = tuple(served_models)
    return sum(served.requests_total for served in request_models(served_models)) if served_models else None


def requests_per_second(served_models: Iterable[ServedModel]) -> float | None:
    """Returns the requests per second of a process's served models; None if unknown, or if it serves no requests."""
    rates = [served.rates for served in request_models(served_models)]
    return sum_known(rate.requests_per_second for rate in rates if rate is not None)


def request_p99_seconds(served_models: Iterable[ServedModel]) -> float | None:
    """Returns the 99th percentile of the recent request latency, of the slowest model; None without requests."""
    rates = [served.rates for served in request_models(served_models)]
    found = [rate.total_latency.p99_seconds for rate in rates if rate is not None and rate.total_latency is not None]
    return max(found, default=None)
