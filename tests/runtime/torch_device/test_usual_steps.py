"""What a step of training asks of the device, beside what else is executed between two steps."""

from __future__ import annotations

from collections import Counter

import pytest

pytest.importorskip("torch")

from neurontools.runtime.execution.usual_steps import Counts, UsualSteps
from neurontools.runtime.execution.work import Work

TRAINING = Work(Counter(float32=30), tensors_total=7, moved_bytes=100)
FORWARD = Work(Counter(float32=10), tensors_total=3, moved_bytes=40)
EVALUATION = Work(Counter(float32=10), tensors_total=3, moved_bytes=40)


class Training:
    """One that counts a batch of 4 samples for each step."""

    def __init__(self) -> None:
        self.counted = UsualSteps()
        self.batches = 0

    def step(self, *executed: Work) -> None:
        self.batches += 1
        self.counted.step_done(Counts(4 * self.batches, self.batches, 2 * self.batches, 0))
        self.run(*executed)

    def run(self, *executed: Work) -> None:
        for work in executed:
            self.counted.executed(work)

    def evaluate(self, batches: int) -> None:
        self.batches += batches
        self.run(*[EVALUATION] * batches)

    def a_step(self) -> tuple[float, ...]:
        total = self.counted.total()
        assert total is not None
        steps, counts, executions, work = total
        numbers = (counts.samples, counts.batches, executions, work.flops, work.tensors_total, work.moved_bytes)
        return tuple(number / steps for number in numbers)


USUAL = (4, 1, 1, 30, 7, 100)


def test_nothing_is_known_before_the_second_step() -> None:
    training = Training()
    training.run(EVALUATION)
    assert training.counted.total() is None
    training.step(TRAINING)
    assert training.counted.total() is None
    training.step(TRAINING)
    assert training.a_step() == USUAL


@pytest.mark.parametrize("batches", [2, 50, 10_000])
def test_an_evaluation_is_no_part_of_a_step_wherever_it_is(batches: int) -> None:
    training = Training()
    training.evaluate(batches)
    for _ in range(3):
        for _ in range(5):
            training.step(TRAINING)
        training.evaluate(batches)
    assert training.a_step() == USUAL


def test_several_batches_an_execution() -> None:
    training = Training()
    for number in range(1, 41):
        training.step(*[TRAINING] * (number % 10 == 0))
    assert training.a_step() == (4, 1, 0.1, 3, 0.7, 10)


def test_a_value_that_is_read_now_and_then_is_part_of_training() -> None:
    training = Training()
    backward = Work(Counter(float32=20))
    for number in range(1, 22):
        training.step(*([FORWARD, backward] if number % 10 == 5 else [TRAINING]))
    steps, _, executions, work = training.counted.total() or pytest.fail("nothing was counted")
    assert (steps, executions, work.flops) == (20, 22, 600)


def test_batches_of_all_sizes_are_part_of_training() -> None:
    training = Training()
    sizes = [Work(Counter(float32=flops)) for flops in (10, 20, 60)]
    for number in range(10):
        training.step(sizes[number % 3])
    assert training.a_step()[3] == 30


def test_what_is_kept_is_bounded() -> None:
    training = Training()
    for number in range(2000):
        training.step(Work(Counter(float32=number)))
    steps, _, executions, _ = training.counted.total() or pytest.fail("nothing was counted")
    assert steps == executions == 256


def test_a_program_that_is_gone_is_not_taken_for_another() -> None:
    training = Training()
    for number in range(100):
        training.step(Work(Counter(float32=number + 1)))
    _, _, _, work = training.counted.total() or pytest.fail("nothing was counted")
    assert work.flops == sum(range(1, 100))
