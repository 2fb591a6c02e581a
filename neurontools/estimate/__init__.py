"""Estimates of the memory, time and cost of a training script on a real instance; public.

`estimate(run, instance_type)` returns an `Estimate` of a run that neuron-run counted (`CountedRun.from_summary`). The
estimate keeps counted, listed and estimated values apart. No torch, no clock, no I/O except the given files.
"""

from neurontools.estimate.calibration import Calibration, CalibrationRow, Interval, read_rows
from neurontools.estimate.counted_run import CountedRun, EstimateError
from neurontools.estimate.estimate import Estimate, estimate
from neurontools.estimate.instances import Price, read_prices

__all__ = [
    "Calibration",
    "CalibrationRow",
    "CountedRun",
    "Estimate",
    "EstimateError",
    "Interval",
    "Price",
    "estimate",
    "read_prices",
    "read_rows",
]
