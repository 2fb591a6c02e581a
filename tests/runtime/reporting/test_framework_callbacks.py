"""The callbacks of training frameworks, called in the order in which the frameworks call them.

The classes that the frameworks define are empty here; tests/frameworks runs the frameworks themselves.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterator
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import torch

from neurontools.runtime.reporting import training_report
from neurontools.runtime.reporting.training_report import TrainingLog, count_samples

NAMES = {
    "transformers": "TrainerCallback",
    "lightning": "",
    "lightning.pytorch": "Callback",
    "accelerate": "",
    "accelerate.tracking": "GeneralTracker",
}


class Clock:
    """A clock that a test moves on."""

    def __init__(self) -> None:
        self.now = 100.0

    def wait(self, seconds: float) -> None:
        self.now += seconds


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    times = SimpleNamespace(perf_counter=lambda: clock.now, monotonic=lambda: clock.now)
    monkeypatch.setattr(training_report, "time", times)
    return clock


@pytest.fixture
def log(clock: Clock, monkeypatch: pytest.MonkeyPatch, tmp_path: Any) -> Iterator[TrainingLog]:
    """The training log of a process without a daemon, beside empty frameworks."""
    log = TrainingLog()
    monkeypatch.setattr(training_report, "training_log", log)
    monkeypatch.setenv("NEURONTOOLS_SOCKET", str(tmp_path / "none.sock"))
    for name, kind in NAMES.items():
        module: Any = ModuleType(name)
        setattr(module, kind or "__path__", type(kind, (), {}) if kind else [])
        monkeypatch.setitem(sys.modules, name, module)
    yield log
    for name in ("hf_trainer", "lightning", "accelerate"):
        sys.modules.pop(f"neurontools.runtime.frameworks.{name}", None)


def callback(name: str) -> Any:
    return importlib.import_module(f"neurontools.runtime.frameworks.{name}").ReportTraining()


def counted(log: TrainingLog) -> tuple[Any, ...]:
    found = log.counters
    return (
        found.steps_total,
        found.samples_total,
        found.input_wait_seconds_total,
        found.checkpoints_total,
        found.checkpoint_seconds_total,
    )


def test_transformers(log: TrainingLog, clock: Clock) -> None:
    report, model = callback("hf_trainer"), torch.nn.Identity()
    report.on_step_begin(None, None, None)
    assert counted(log)[2] is None, "the time before the first mark is unknown"
    report.on_train_begin(None, None, None, model=model)
    for _ in range(2):
        clock.wait(1.0)
        report.on_step_begin(None, None, None)
        model.train()
        model(torch.ones(3, 2))
        model(input=torch.ones(2, 2))
        model.eval()
        model(torch.ones(9, 2))
        clock.wait(4.0)
        report.on_step_end(None, None, None)
        clock.wait(8.0)
        report.on_log(None, None, None)
    assert counted(log) == (2, 10, 2.0, None, None)
    clock.wait(0.5)
    report.on_save(None, None, None)
    assert counted(log)[3:] == (1, 0.5)
    report.on_train_end(None, None, None)
    model.train()
    model(torch.ones(3, 2))
    report.on_step_end(None, None, None)
    assert counted(log)[:2] == (3, 10), "the hook is removed, and a step without samples is a step"


def test_lightning(log: TrainingLog, clock: Clock) -> None:
    report, trainer = callback("lightning"), SimpleNamespace(global_step=7)
    report.on_train_start(trainer, None)
    for number in range(1, 5):
        clock.wait(1.0)
        report.on_train_batch_start(trainer, None, {"words": torch.ones(4)}, number)
        trainer.global_step += number % 2 == 0
        clock.wait(2.0)
        report.on_train_batch_end(trainer, None, None, None, number)
    assert counted(log) == (2, 16, 4.0, None, None)
    clock.wait(16.0)
    report.on_validation_end(trainer, None)
    report.on_train_batch_start(trainer, None, None, 5)
    report.on_save_checkpoint(trainer, None, None)
    trainer.global_step += 2
    report.on_train_batch_end(trainer, None, None, None, 5)
    report.on_train_end(trainer, None)
    assert counted(log) == (3, 16, 4.0, 1, None)


def test_accelerate(log: TrainingLog, clock: Clock) -> None:
    report = callback("accelerate")
    assert (report.name, report.requires_logging_directory, report.main_process_only) == ("neurontools", False, False)
    optimizer = torch.optim.SGD([torch.zeros(1, requires_grad=True)])
    for samples in (3, 4, "none"):
        report.log({"samples": samples, "loss": 1.0})
        report.log({"samples": 2})
        optimizer.step()
    report.store_init_configuration({})
    assert counted(log)[:2] == (3, 13)
    with report.tracker.checkpoint():
        clock.wait(2.0)
    for _ in report.tracker.batches([1, 2]):
        clock.wait(1.0)
    report.finish()
    optimizer.step()
    assert counted(log) == (3, 13, 0.0, 1, 2.0)


def test_samples_of_a_batch() -> None:
    for batch, expected in (
        (torch.ones(3, 4), 3),
        (torch.ones(()), None),
        ({"a": 1, "b": [torch.ones(2)]}, 2),
        ((torch.ones(()), torch.ones(5)), 5),
        ("text", None),
        ([], None),
    ):
        assert count_samples(batch) == expected
