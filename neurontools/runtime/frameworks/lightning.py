"""A callback for Lightning's Trainer: `Trainer(…, callbacks=[ReportTraining()])`."""

from __future__ import annotations

from typing import Any

from lightning.pytorch import Callback

from neurontools.runtime.reporting.training_report import LoopTimer, TrainingReport, samples_of, training_log


class ReportTraining(Callback):  # type: ignore[misc]
    """Tells the daemon of steps, samples, input wait and checkpoints; how long these take, Lightning tells nobody."""

    def __init__(self) -> None:
        self._report: TrainingReport | None = None
        self._pace = LoopTimer()
        self._steps = 0
        self._samples: int | None = None

    def on_train_start(self, trainer: Any, pl_module: Any) -> None:
        """Begins to report."""
        self._report = TrainingReport.start()
        self._steps = trainer.global_step
        self._pace.event()

    def on_train_batch_start(self, trainer: Any, pl_module: Any, batch: Any, batch_idx: int) -> None:
        """A batch is there."""
        self._pace.batch_is_there()
        found = samples_of(batch)
        if found is not None:
            self._samples = (self._samples or 0) + found

    def on_train_batch_end(self, trainer: Any, pl_module: Any, outputs: Any, batch: Any, batch_idx: int) -> None:
        """A batch was used, and with it perhaps steps made."""
        for _ in range(trainer.global_step - self._steps):
            if self._report is not None:
                self._report.step(self._samples)
            self._samples = None
        self._steps = trainer.global_step
        self._pace.event()

    def on_train_epoch_start(self, trainer: Any, pl_module: Any) -> None:
        """What came before is no waiting."""
        self._pace.event()

    on_validation_end = on_train_epoch_start

    def on_save_checkpoint(self, trainer: Any, pl_module: Any, checkpoint: Any) -> None:
        """A checkpoint is being written."""
        training_log.wrote_checkpoint(None)

    def on_train_end(self, trainer: Any, pl_module: Any) -> None:
        """Tells the last of it, and gives the cores back."""
        if self._report is not None:
            self._report.flush()
            self._report.close()
