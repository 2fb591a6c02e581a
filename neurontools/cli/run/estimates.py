"""The estimate that neuron-run makes at its end."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from neurontools import catalog
from neurontools.estimate import (
    Calibration,
    CalibrationRow,
    CountedRun,
    EstimateError,
    Price,
    estimate,
    read_prices,
    read_rows,
)
from neurontools.estimate.instances import InstanceHardware
from neurontools.estimate.report import estimate_document, format_estimates
from neurontools.util.errors import EXIT_USAGE, UserError

_ALL = "all"
_INFERENCE_ONLY = "inferentia"  # the first one: nothing trains on it


@dataclass(frozen=True)
class Estimates:
    """What was asked for, read and checked before the script runs."""

    instance_types: tuple[str, ...]
    rows: tuple[CalibrationRow, ...]
    prices: tuple[Price, ...]
    epoch_samples: int | None

    @classmethod
    def of(cls, given: dict[str, str], epoch_samples: int | None) -> Estimates:
        """Reads the options; UserError says what is wrong with one."""
        asked = given["estimate"]
        try:
            names = _all() if asked == _ALL else tuple(dict.fromkeys(filter(None, asked.split(","))))
            for name in names:
                InstanceHardware.from_catalog(name)
        except EstimateError as error:
            raise UserError(f"--estimate: {error}", EXIT_USAGE) from None
        if not names:
            raise UserError("--estimate: no instance type given; give some, separated by commas, or all", EXIT_USAGE)
        try:
            rows = read_rows(Path(given["calibrate"])) if "calibrate" in given else []
        except EstimateError as error:
            raise UserError(f"--calibrate {error}", EXIT_USAGE) from None
        try:
            prices = read_prices(Path(given["prices"])) if "prices" in given else []
        except EstimateError as error:
            raise UserError(f"--prices {error}", EXIT_USAGE) from None
        return cls(names, tuple(rows), tuple(prices), epoch_samples)

    def of_run(self, summary: dict[str, Any]) -> str:
        """The estimate of a run as text, which the summary gets as data; a line of why there is none."""
        try:
            run = CountedRun.from_summary(summary)
            calibration = self._calibration(run)
            made = [
                estimate(run, name, calibration=calibration, prices=self.prices, epoch_samples=self.epoch_samples)
                for name in self.instance_types
            ]
        except EstimateError as error:
            summary["estimates"] = []
            return f"neuron-run: no estimate: {error}"
        summary["estimates"] = [estimate_document(each) for each in made]
        return format_estimates(made, datetime.now(UTC).date())

    def _calibration(self, run: CountedRun) -> Calibration | None:
        if not self.rows:
            return None
        if run.samples is None:
            raise EstimateError(
                "samples were not counted, so rows can't be compared; load with torch_xla's MpDeviceLoader"
            )
        return Calibration.of(self.rows, run.flops / run.samples, run.worker_count)


def _all() -> tuple[str, ...]:
    """The types that training can be estimated for."""
    return tuple(name for name in catalog.names() if catalog.load(name).family.name != _INFERENCE_ONLY)
