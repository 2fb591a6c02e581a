"""What the running script could do better, told with the reports: the rules of neuron-run's advice, while it runs."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping

from neurontools.estimate.advice import EVERY_RULE, IGNORED_RULES
from neurontools.model import ScriptAdvice
from neurontools.runtime.counting.steps import steps
from neurontools.runtime.launch.summary import document
from neurontools.runtime.reporting.reporter import Reporter
from neurontools.runtime.tensors.buffer_table import buffers

_INTERVAL_SECONDS = 10.0
_LEAST_STEPS = 20  # more than at the end of a run, where nothing can come any more that a rule takes for the rest
_LONGEST_WAIT_SECONDS = 0.05  # for an execution to end; else it is tried with the next report
_OF_WHOLE_RUNS = frozenset({"outside-loop"})  # a run that has just begun was outside of its loop for the most part


class Judgement:
    """Judges every ten seconds in the thread of the reporter, which takes it less than a millisecond.

    Rules that the user does not want to hear, by NEURONTOOLS_IGNORE_ADVICE, say nothing here either.
    """

    def __init__(self, environment: Mapping[str, str] = os.environ) -> None:
        self._ignored = _OF_WHOLE_RUNS.union(environment.get(IGNORED_RULES, "").split(","))
        self._next_seconds = time.monotonic() + _INTERVAL_SECONDS
        self._judged_steps = 0

    def __call__(self, reporter: Reporter) -> None:
        """Judges what was counted so far, if it is time and there were more steps."""
        now_seconds = time.monotonic()
        if now_seconds < self._next_seconds or steps.steps_total < max(_LEAST_STEPS, self._judged_steps + 1):
            return
        if EVERY_RULE in self._ignored or not buffers.lock.acquire(timeout=_LONGEST_WAIT_SECONDS):
            return
        try:
            counted = document()
        finally:
            buffers.lock.release()
        self._next_seconds, self._judged_steps = now_seconds + _INTERVAL_SECONDS, steps.steps_total
        from neurontools.estimate.rules import find_advice

        workers = int(os.environ.get("WORLD_SIZE", "1") or 1)
        found = find_advice(
            {"ranks": [counted], "workers": workers, "instance_type": counted["instance_type"]}, self._ignored
        )
        reporter.set_advice([ScriptAdvice(a.rule, a.measured, a.place, a.fix, a.effect) for a in found])
