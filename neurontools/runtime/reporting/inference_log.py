"""Counts the requests and calls of the models that this process serves.

The runtime counts the calls of traced models here, and an application its own requests. Reports carry the counters to
the daemon. `neurontools.model.ServedModel` defines a call and a request.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable
from math import isfinite
from threading import Lock

from neurontools.model.execution import LatencyCounts
from neurontools.model.serving import ModelPlacement, ServedModel
from neurontools.rpc.report_limits import LONGEST_SERVED_MODEL, MOST_PLACEMENTS, MOST_SERVED_MODELS

OTHER_MODELS = "other models"
"""Name under which the models beyond the first `MOST_SERVED_MODELS` are counted together."""


class ModelCounters:
    """The counters of one served model. Any thread may call the methods. None of them waits for the daemon.

    Seconds are durations and must be finite and not negative; another value raises ValueError and changes nothing.
    """

    def __init__(self, name: str, clock: Callable[[], float] = time.monotonic) -> None:
        self.name = name
        self._clock = clock
        self._lock = Lock()
        self._placements: list[ModelPlacement] = []
        self._requests = self._failed_requests = self._calls = self._samples = 0
        self._has_application_requests = False
        self._queue_wait_seconds = 0.0
        self._queue_depth: int | None = None
        self._last_request_at_seconds: float | None = None
        self._tokens: int | None = None
        self._total_latencies = LatencyCounts()
        self._device_latencies = LatencyCounts()
        self._first_token_latencies = LatencyCounts()
        self._output_token_latencies = LatencyCounts()

    def load(self, placements: Iterable[ModelPlacement]) -> None:
        """Records that the model was loaded. The core index of a placement is process-local."""
        with self._lock:
            self._placements += placements
            del self._placements[MOST_PLACEMENTS:]

    def unload(self, placements: Iterable[ModelPlacement]) -> None:
        """Records that placements of `load` were unloaded. Ignores unknown ones."""
        with self._lock:
            for placement in placements:
                if placement in self._placements:
                    self._placements.remove(placement)

    def record_call(
        self,
        batch_size: int,
        total_seconds: float,
        device_seconds: float,
        queue_wait_seconds: float = 0.0,
        *,
        failed: bool = False,
    ) -> None:
        """Records one execution of the model on a batch.

        `total_seconds` is the time from the caller's submission to the result, and includes `queue_wait_seconds` and
        `device_seconds`. The call counts as a request, unless the application records requests of this model.
        """
        _check_seconds(total_seconds, device_seconds, queue_wait_seconds)
        with self._lock:
            self._calls += 1
            self._samples += max(0, batch_size)
            if not failed:
                self._device_latencies.add(device_seconds)
            if not self._has_application_requests:
                self._end_request(total_seconds, queue_wait_seconds, failed)

    def record_request(self, total_seconds: float, queue_wait_seconds: float = 0.0, *, failed: bool = False) -> None:
        """Records one request of the application, from its arrival to its answer.

        The first such request replaces the requests that were counted from calls: the two are not comparable.
        """
        _check_seconds(total_seconds, queue_wait_seconds)
        with self._lock:
            self._use_application_requests()
            self._end_request(total_seconds, queue_wait_seconds, failed)

    def record_tokens(
        self, count: int, first_token_seconds: float | None, total_seconds: float | None, *, steps: int | None = None
    ) -> None:
        """Records the tokens that one request has generated in `steps` steps, by default one token in each.

        `first_token_seconds` is the time from the request to its first token, `total_seconds` to its last token. None
        means not measured. With two steps or more, the mean time of the steps after the first is recorded too.
        """
        _check_seconds(*(value for value in (first_token_seconds, total_seconds) if value is not None))
        with self._lock:
            self._tokens = (self._tokens or 0) + max(0, count)
            if first_token_seconds is None or count < 1:
                return
            self._first_token_latencies.add(first_token_seconds)
            step_count = count if steps is None else steps
            if total_seconds is not None and step_count > 1:
                self._output_token_latencies.add(max(0.0, total_seconds - first_token_seconds) / (step_count - 1))

    def change_queue_depth(self, change: int) -> None:
        """Adds to the number of waiting requests: 1 when one arrives, -1 when its execution starts."""
        with self._lock:
            self._queue_depth = max(0, (self._queue_depth or 0) + change)

    def read(self) -> ServedModel:
        """Returns all counters as of now."""
        with self._lock:
            return ServedModel(
                name=self.name,
                placements=tuple(sorted(self._placements, key=lambda placement: placement.neuroncore_index)),
                requests_total=self._requests,
                failed_requests_total=self._failed_requests,
                calls_total=self._calls,
                samples_total=self._samples,
                has_application_requests=self._has_application_requests,
                queue_wait_seconds_total=self._queue_wait_seconds,
                queue_depth=self._queue_depth,
                last_request_at_seconds=self._last_request_at_seconds,
                total_latency_histogram=self._total_latencies.histogram(),
                device_latency_histogram=self._device_latencies.histogram(),
                tokens_total=self._tokens,
                first_token_histogram=self._first_token_latencies.histogram(),
                output_token_histogram=self._output_token_latencies.histogram(),
            )

    def _use_application_requests(self) -> None:
        if self._has_application_requests:
            return
        self._has_application_requests = True
        self._requests = self._failed_requests = 0
        self._queue_wait_seconds = 0.0
        self._total_latencies = LatencyCounts()

    def _end_request(self, total_seconds: float, queue_wait_seconds: float, failed: bool) -> None:
        self._requests += 1
        self._failed_requests += failed
        self._queue_wait_seconds += queue_wait_seconds
        self._last_request_at_seconds = self._clock()
        if not failed:
            self._total_latencies.add(total_seconds)


class InferenceLog:
    """The served models of this process, by name. Any thread may use it. A forked child starts with an empty log."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._models: dict[str, ModelCounters] = {}
        os.register_at_fork(after_in_child=self._clear)

    def model(self, name: str) -> ModelCounters:
        """Returns the counters of the model with this name, which all its copies in this process share.

        Cuts a long name. Beyond the limit of models, returns the common counters of `OTHER_MODELS`.
        """
        name = name[:LONGEST_SERVED_MODEL].encode(errors="replace").decode()
        name = "".join(letter if letter.isprintable() else "?" for letter in name) or "model"
        with self._lock:
            if name not in self._models and len(self._models) >= MOST_SERVED_MODELS - 1:
                name = OTHER_MODELS
            return self._models.setdefault(name, ModelCounters(name))

    def read(self) -> tuple[ServedModel, ...]:
        """Returns the counters of all models, in the order of their first use."""
        with self._lock:
            models = tuple(self._models.values())
        return tuple(model.read() for model in models)

    def _clear(self) -> None:
        self._lock = Lock()
        self._models = {}


inference_log = InferenceLog()


def _check_seconds(*values: float) -> None:
    for value in values:
        if not (isfinite(value) and value >= 0):
            raise ValueError(f"{value} is not a duration in seconds: give a finite number of at least 0")
