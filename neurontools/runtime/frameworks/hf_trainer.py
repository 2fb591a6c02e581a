"""A callback for transformers' Trainer: `Trainer(…, callbacks=[ReportTraining()])`."""

from __future__ import annotations

from typing import Any

from transformers import TrainerCallback

from neurontools.runtime.reporting.training_report import LoopTimer, TrainingReport, samples_of


class ReportTraining(TrainerCallback):  # type: ignore[misc]
    """Tells the daemon of steps, samples, input wait and checkpoints. Samples are counted where the model gets them."""

    def __init__(self) -> None:
        self._report: TrainingReport | None = None
        self._pace = LoopTimer()
        self._samples: int | None = None
        self._hook: Any = None

    def on_train_begin(self, args: Any, state: Any, control: Any, model: Any = None, **_: Any) -> None:
        """Begins to report."""
        self._report = TrainingReport.start()
        self._pace.event()
        if model is not None:
            self._hook = model.register_forward_pre_hook(self._count, with_kwargs=True)

    def _count(self, module: Any, arguments: Any, keywords: Any) -> None:
        found = samples_of(keywords)
        if module.training and (found or samples_of(arguments)):
            self._samples = (self._samples or 0) + (found or samples_of(arguments) or 0)

    def on_step_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """The batches of the step are there."""
        self._pace.batch_is_there()

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """A step was made."""
        if self._report is not None:
            self._report.step(self._samples)
        self._samples = None
        self._pace.event()

    def on_save(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """A checkpoint was written."""
        self._pace.checkpoint_is_written()

    def on_log(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """What was logged is no waiting."""
        self._pace.event()

    on_evaluate = on_epoch_begin = on_log

    def on_train_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """Tells the last of it, and gives the cores back."""
        if self._hook is not None:
            self._hook.remove()
        if self._report is not None:
            self._report.flush()
            self._report.close()
