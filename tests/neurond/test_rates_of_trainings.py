"""The rates of what a training counts: its steps, the parts of their time, its operators and models."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from neurontools.model import LoadedModel, OperatorTime, TrainingCounters, TrainingRates
from neurontools.model.training import STEP_PARTS, RecentSteps
from tests.harness.rated_host import Host, core, process


def test_what_a_training_runtime_counts_has_rates() -> None:
    def at(moment: float, counters: TrainingCounters | None) -> TrainingRates | None:
        return host.take(moment, core(moment), process(moment, training=counters)).processes[0].training_rates

    host = Host()
    first = TrainingCounters(3, None, 0, 0.0, 0, 0.0, 0, 0, 0)
    assert at(1.0, first) is None
    counters = replace(first, steps_total=9, collective_seconds_total=0.5, to_device_bytes_total=200)
    later = at(3.0, counters)
    assert later == TrainingRates(3.0, None, 0.25, 0.0, 100.0, 0.0)
    assert at(3.0, counters) == later, "no new report: the rates stay"
    counters = replace(counters, samples_total=32, collective_seconds_total=9.0)
    assert at(4.0, counters) == TrainingRates(0.0, None, 1.0, 0.0, 0.0, 0.0)
    assert at(6.0, replace(counters, samples_total=96)) == TrainingRates(0.0, 32.0, 0.0, 0.0, 0.0, 0.0)
    assert at(7.0, None) is None


def test_what_a_training_does_not_tell_has_no_rate() -> None:
    def at(moment: float, counters: TrainingCounters) -> TrainingRates | None:
        return host.take(moment, core(moment), process(moment, training=counters)).processes[0].training_rates

    host = Host()
    assert at(1.0, TrainingCounters(steps_total=3, input_wait_seconds_total=1.0)) is None
    told = TrainingCounters(steps_total=5, input_wait_seconds_total=1.5)
    assert at(3.0, told) == TrainingRates(steps_per_second=1.0, input_wait_ratio=0.25)
    told = replace(told, input_wait_seconds_total=9.0)
    assert at(4.0, told) == TrainingRates(steps_per_second=0.0, input_wait_ratio=1.0)


def test_each_part_of_step_time_has_its_share() -> None:
    def at(moment: float, counters: TrainingCounters) -> TrainingRates | None:
        return host.take(moment, core(moment), process(moment, training=counters)).processes[0].training_rates

    host = Host()
    first = TrainingCounters(
        host_seconds_total=1.0,
        compile_wait_seconds_total=7.0,
        input_wait_seconds_total=0.0,
        transfer_seconds_total=0.5,
        compute_seconds_total=2.0,
        collective_wait_seconds_total=1.0,
    )
    at(1.0, first)
    counters = replace(
        first,
        host_seconds_total=2.0,
        input_wait_seconds_total=0.5,
        transfer_seconds_total=0.75,
        compute_seconds_total=4.0,
    )
    shares = at(5.0, replace(counters, collective_wait_seconds_total=1.25))
    assert shares == TrainingRates(
        steps_per_second=0.0,
        host_ratio=0.25,
        compile_wait_ratio=0.0,
        input_wait_ratio=0.125,
        transfer_ratio=0.0625,
        compute_ratio=0.5,
        collective_wait_ratio=0.0625,
    )


@pytest.mark.parametrize("report_seconds", [3.8, 4.0, 4.2])
def test_the_parts_of_step_time_are_of_their_own_sum_and_not_of_the_time_between_reports(report_seconds: float) -> None:
    def at(moment: float, **parts: float) -> TrainingRates | None:
        counters = TrainingCounters(
            **{part.counter: parts.get(part.counter, 0.0) for part in STEP_PARTS}  # type: ignore[arg-type]
        )
        return host.take(moment, core(moment), process(moment, training=counters)).processes[0].training_rates

    host = Host()
    at(1.0)
    rates = at(1.0 + report_seconds, host_seconds_total=1.0, compute_seconds_total=2.0, transfer_seconds_total=1.0)
    assert rates is not None
    assert (rates.host_ratio, rates.compute_ratio, rates.transfer_ratio) == (0.25, 0.5, 0.25)


def test_parts_of_which_one_fell_are_together_no_more_than_the_whole() -> None:
    def at(moment: float, host_seconds: float, input_wait_seconds: float, compute_seconds: float) -> TrainingRates:
        counters = TrainingCounters(
            host_seconds_total=host_seconds,
            input_wait_seconds_total=input_wait_seconds,
            compute_seconds_total=compute_seconds,
        )
        rates = host.take(moment, core(moment), process(moment, training=counters)).processes[0].training_rates
        return rates or TrainingRates()

    host = Host()
    at(1.0, 6.0, 0.0, 1.0)
    told = at(2.0, 1.0, 5.0, 1.5)  # a script that says after five seconds that they were waiting
    assert told.host_ratio is None
    assert told.input_wait_ratio is not None
    assert told.compute_ratio is not None
    assert told.input_wait_ratio + told.compute_ratio <= 1.0


def test_operators_and_models_have_their_shares_of_the_last_ten_seconds() -> None:
    def at(moment: float, seconds: float, measured: float | None = None, **fields: Any) -> tuple[float | None, ...]:
        model = LoadedModel(1, "m", "0" * 32, running=True, busy_seconds_total=2 * seconds)
        told = process(
            moment if measured is None else measured,
            operators=(OperatorTime("mm", seconds, 1),),
            models=(model,),
            counted_since_seconds=0.5,
            **fields,
        )
        (taken,) = host.take(moment, core(moment), told).processes
        return taken.operators[0].ratio, taken.models[0].busy_ratio

    host = Host()
    assert at(1.0, 0.0) == (None, None)
    assert at(2.0, 0.25) == (0.25, 0.5)
    assert at(3.0, 0.25, measured=2.0) == (0.25, 0.5), "no new report: the shares stay"
    for moment in range(3, 12):
        at(float(moment), 0.25)
    assert at(12.0, 0.25 + 4.0) == (0.4, 0.8), "of ten seconds, however long a step is"
    assert at(13.0, 0.1) == (None, None), "what falls is not known"
    assert at(14.0, 9.0, reporting=False) == (None, None)
    before = host.rates._shares
    host.take(15.0, core(15.0))
    assert not before._past, "who has gone is forgotten"


def test_operators_that_are_told_apart_for_the_first_time_have_shares_at_once() -> None:
    def at(moment: float, **seconds: float) -> dict[str, float | None]:
        operators = tuple(OperatorTime(name.strip("_"), spent, 1) for name, spent in seconds.items())
        told = process(moment, operators=operators, counted_since_seconds=0.5)
        return {each.name: each.ratio for each in host.take(moment, core(moment), told).processes[0].operators}

    host = Host()
    assert at(1.0, _=1.0) == {"": None}
    assert at(2.0, mm=0.25, _=1.0) == {"mm": 0.25, "": 0.0}
    for moment in range(3, 14):
        at(float(moment), mm=0.25, _=1.0)
    assert at(14.0, mm=0.25, add=0.5, _=1.0) == {"mm": 0.0, "add": None, "": 0.0}, "it may have been among the rest"


def stepped(steps: int, wait: float | None, host: float = 0.0) -> TrainingCounters:
    return TrainingCounters(steps_total=steps, collective_wait_seconds_total=wait, host_seconds_total=host)


def test_the_latest_steps_of_a_rank_are_told_in_two_spans() -> None:
    def at(moment: float, steps: int, wait: float | None) -> RecentSteps | None:
        counted = stepped(steps, wait, moment)
        return host.take(moment, core(moment), process(moment, training=counted)).processes[0].recent_steps

    host = Host()
    assert at(0.0, 1, 0.0) is None, "the first steps compile"
    assert at(1.0, 2, 0.0) is None
    assert at(2.0, 7, 5.0) is None, "too few"
    assert at(3.0, 10, 0.8) is None, "one span"
    told = at(5.0, 18, 4.0)
    assert told is not None
    assert told.steps == 16
    assert told.least_wait_seconds == pytest.approx(0.1)
    assert told.most_wait_seconds == pytest.approx(0.4)
    parts = dict(zip([part.name for part in STEP_PARTS], told.part_seconds, strict=True))
    assert parts["collective wait"] == pytest.approx(0.25)
    assert parts["host"] == pytest.approx(0.25)
    assert told.step_seconds == pytest.approx(0.5)
    assert at(6.0, 19, 4.0) == told, "until there are enough new ones"
    assert at(7.0, 26, 4.0) != told


def test_who_counts_anew_or_does_not_tell_its_waits_begins_anew() -> None:
    def at(moment: float, steps: int, wait: float | None, attached: float = 2.0) -> RecentSteps | None:
        of = process(moment, training=stepped(steps, wait), attached_at_unix_seconds=attached)
        return host.take(moment, core(moment), of).processes[0].recent_steps

    host = Host()
    for moment in range(4):
        at(float(moment), 8 * moment + 2, 1.0 * moment)
    assert at(4.0, 34, 4.0) is not None
    assert at(5.0, 42, None) is None
    assert at(6.0, 10, 1.0, attached=9.0) is None
    assert at(7.0, 18, 1.0, attached=9.0) is None
    assert at(8.0, 26, 1.0, attached=9.0) is not None
    host.take(9.0)
    assert not host.rates._steps._past
