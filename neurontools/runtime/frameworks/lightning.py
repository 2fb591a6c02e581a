"""A callback for Lightning's Trainer: `Trainer(…, callbacks=[ReportTraining()])`."""

from __future__ import annotations

from typing import Any

from lightning.pytorch import Callback

from neurontools.runtime.reporting.training_report import LoopTimer, TrainingReport, count_samples, training_log


class ReportTraining(Callback):  # type: ignore[misc]
    """Reports steps, samples, input wait and checkpoints to the daemon.

    The durations of checkpoints are missing, because Lightning does not give them to callbacks.
    """

    def __init__(self) -> None:
        self._report: TrainingReport | None = None
        self._timer = LoopTimer()
        self._steps = 0
        self._samples: int | None = None

    def on_train_start(self, trainer: Any, pl_module: Any) -> None:
        """Starts to report the training to the daemon."""
        self._report = TrainingReport.start()
        self._steps = trainer.global_step
        self._timer.mark()

    def on_train_batch_start(self, trainer: Any, pl_module: Any, batch: Any, batch_idx: int) -> None:
        """Ends the input wait and counts the samples of the batch."""
        self._timer.end_input_wait()
        found = count_samples(batch)
        if found is not None:
            self._samples = (self._samples or 0) + found

    def on_train_batch_end(self, trainer: Any, pl_module: Any, outputs: Any, batch: Any, batch_idx: int) -> None:
        """Reports a step if the batch had an optimizer step. Several optimizers may step in one batch."""
        if trainer.global_step > self._steps:
            if self._report is not None:
                self._report.step(self._samples)
            self._samples = None
        self._steps = trainer.global_step
        self._timer.mark()

    def on_train_epoch_start(self, trainer: Any, pl_module: Any) -> None:
        """Excludes validation and the end of the previous epoch from the input wait."""
        self._timer.mark()

    on_validation_end = on_train_epoch_start

    def on_save_checkpoint(self, trainer: Any, pl_module: Any, checkpoint: Any) -> None:
        """Reports a checkpoint without a duration."""
        training_log.add_checkpoint(None)

    def on_train_end(self, trainer: Any, pl_module: Any) -> None:
        """Sends the last report and gives the cores back."""
        if self._report is not None:
            self._report.flush()
            self._report.close()
