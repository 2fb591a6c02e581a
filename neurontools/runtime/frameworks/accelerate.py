"""A tracker for Hugging Face's accelerate: `Accelerator(log_with=ReportTraining())`, then `init_trackers`."""

from __future__ import annotations

from typing import Any

from accelerate.tracking import GeneralTracker
from torch.optim.optimizer import register_optimizer_step_post_hook

from neurontools.runtime.counting.steps import StepBoundaries
from neurontools.runtime.reporting.training_report import TrainingReport


class ReportTraining(GeneralTracker):  # type: ignore[misc]
    """Reports each training step to the daemon, with the `samples` that the script passes to `accelerator.log`.

    accelerate has no callbacks for input wait and checkpoints. Scripts report both by `tracker.batches`
    and `tracker.checkpoint`.
    """

    name = "neurontools"
    requires_logging_directory = False
    main_process_only = False

    def __init__(self) -> None:
        super().__init__()
        self._report = TrainingReport.start()
        self._samples: int | None = None
        self._boundaries = StepBoundaries()
        self._hook = register_optimizer_step_post_hook(self._stepped)

    def _stepped(self, optimizer: Any, *_: Any) -> None:
        if not self._boundaries.begins_step(optimizer):
            return
        self._report.step(self._samples)
        self._samples = None

    @property
    def tracker(self) -> TrainingReport:
        """The TrainingReport of this process, by which scripts report input wait and checkpoints."""
        return self._report

    def store_init_configuration(self, values: dict[str, Any]) -> None:
        """Ignores the configuration that accelerate passes."""

    def log(self, values: dict[str, Any], step: int | None = None, **_: Any) -> None:
        """Adds the number under "samples" to the count of the next step. Ignores other values."""
        samples = values.get("samples")
        if isinstance(samples, int):
            self._samples = (self._samples or 0) + samples

    def finish(self) -> None:
        """Sends the last report and gives the cores back."""
        self._hook.remove()
        self._report.flush()
        self._report.close()
