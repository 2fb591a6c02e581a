"""Reports of an application that serves models: its requests, their wait in a queue, and generated tokens."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping
from typing import Any

from neurontools.runtime.reporting.inference_log import ModelCounters, inference_log
from neurontools.runtime.reporting.reporter import Reporter
from neurontools.runtime.reporting.training_report import attach_reporter, flush_reports


class InferenceReport:
    """Reports the requests of this process to the daemon, once a second from its own thread.

    Create it with `start`. Any thread may call the methods; none raises or waits, except `flush` and `close`. Without a
    daemon, or if the daemon refuses the NeuronCores, serving goes on and nothing is reported. On simulated NeuronCores
    the runtime reports the calls of traced models itself, and this class adds the requests.
    """

    def __init__(self, reporter: Reporter | None) -> None:
        self._reporter = reporter

    @classmethod
    def start(cls, environment: Mapping[str, str] = os.environ, *, socket: str | None = None) -> InferenceReport:
        """Starts to report for the NeuronCores that the environment requests, as `TrainingReport.start` does."""
        return cls(
            attach_reporter(
                "serving", lambda reporter: reporter.set_served_models(inference_log.read()), environment, socket
            )
        )

    def request(self, model: str) -> RequestTimer:
        """Begins a request for a model. Use it as a context manager, or call its `end`."""
        return RequestTimer(inference_log.model(model))

    def tokens(self, model: str) -> TokenTimer:
        """Returns a timer of the tokens of one request, such as a `streamer` of transformers' `generate`."""
        return TokenTimer(inference_log.model(model))

    def flush(self) -> bool:
        """Waits until the daemon has a report of everything so far; returns False at the time-out, or without one."""
        return flush_reports(self._reporter)

    def close(self) -> None:
        """Releases the cores and stops reporting. May be called again."""
        if self._reporter is not None:
            self._reporter.close()

    def __enter__(self) -> InferenceReport:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class RequestTimer:
    """One request, from its arrival to its answer. Until `begin`, it waits in the queue of the model."""

    def __init__(self, counters: ModelCounters, clock: Callable[[], float] = time.monotonic) -> None:
        self._counters = counters
        self._clock = clock
        self._arrived_seconds = clock()
        self._begun_seconds: float | None = None
        self._is_ended = False
        counters.change_queue_depth(1)

    def begin(self) -> None:
        """Ends the wait in the queue: the request's execution starts now. Only the first call has an effect."""
        if self._begun_seconds is None and not self._is_ended:
            self._begun_seconds = self._clock()
            self._counters.change_queue_depth(-1)

    def end(self, *, failed: bool = False) -> None:
        """Records the request. Only the first call has an effect."""
        if self._is_ended:
            return
        now = self._clock()
        begun = now if self._begun_seconds is None else self._begun_seconds
        if self._begun_seconds is None:
            self._counters.change_queue_depth(-1)
        self._is_ended = True
        waited_seconds = begun - self._arrived_seconds
        self._counters.record_request(now - self._arrived_seconds, waited_seconds, failed=failed)

    def __enter__(self) -> RequestTimer:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        self.end(failed=kind is not None)


class TokenTimer:
    """Times the generated tokens of one request, or of one batch that is generated together.

    It is a streamer for transformers: `model.generate(…, streamer=report.tokens("llama"))`. `generate` first passes the
    prompt, then the new tokens of each step. With another library, call `begin`, `add_tokens` and `end`.
    """

    def __init__(self, counters: ModelCounters, clock: Callable[[], float] = time.monotonic) -> None:
        self._counters = counters
        self._clock = clock
        self._has_prompt = False
        self.begin()

    def begin(self) -> None:
        """Begins the request now."""
        self._began_seconds = self._clock()
        self._first_seconds: float | None = None
        self._steps = self._tokens = 0

    def add_tokens(self, count: int = 1) -> None:
        """Counts the tokens of one step: one for each sequence of the batch."""
        if self._first_seconds is None:
            self._first_seconds = self._clock() - self._began_seconds
        self._steps += 1
        self._tokens += count

    def put(self, value: Any) -> None:
        """Receives the prompt or the new tokens from transformers."""
        if self._has_prompt:
            self.add_tokens(int(value.numel()))
        self._has_prompt = True

    def end(self) -> None:
        """Records the tokens of the request. The next tokens belong to a new request that begins now."""
        total_seconds = self._clock() - self._began_seconds
        self._counters.record_tokens(self._tokens, self._first_seconds, total_seconds, steps=self._steps)
        self._has_prompt = False
        self.begin()
