"""A callback for transformers' Trainer: `Trainer(…, callbacks=[ReportTraining()])`."""

from __future__ import annotations

from typing import Any

from transformers import TrainerCallback

from neurontools.runtime.reporting.training_report import LoopTimer, TrainingReport, count_samples


class ReportTraining(TrainerCallback):  # type: ignore[misc]
    """Reports steps, samples, input wait and checkpoints to the daemon.

    A hook before the model's forward pass counts the samples.
    """

    def __init__(self) -> None:
        self._report: TrainingReport | None = None
        self._timer = LoopTimer()
        self._samples: int | None = None
        self._hook: Any = None

    def on_train_begin(self, args: Any, state: Any, control: Any, model: Any = None, **_: Any) -> None:
        """Starts to report the training to the daemon."""
        self._report = TrainingReport.start()
        self._timer.mark()
        if model is not None:
            self._hook = model.register_forward_pre_hook(self._count_batch, with_kwargs=True)

    def _count_batch(self, module: Any, arguments: Any, keywords: Any) -> None:
        found = count_samples(keywords) or count_samples(arguments)
        if module.training and found:
            self._samples = (self._samples or 0) + found

    def on_step_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """Ends the input wait: the batches of the step are loaded."""
        self._timer.end_input_wait()

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """Reports a training step."""
        if self._report is not None:
            self._report.step(self._samples)
        self._samples = None
        self._timer.mark()

    def on_save(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """Reports a checkpoint and its duration."""
        self._timer.end_checkpoint()

    def on_log(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """Excludes logging, evaluation and the start of an epoch from the input wait."""
        self._timer.mark()

    on_evaluate = on_epoch_begin = on_log

    def on_train_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """Sends the last report and gives the cores back."""
        if self._hook is not None:
            self._hook.remove()
        if self._report is not None:
            self._report.flush()
            self._report.close()
