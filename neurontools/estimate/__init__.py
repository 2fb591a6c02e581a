"""What a training script that was run here would need, take and cost on a real instance; public.

`estimate(run, instance_type)` makes an `Estimate` of what neuron-run counted (`CountedRun.from_summary`). What is
counted, what is a fact of a list and what is estimated stand apart in it. No torch, no clock, no I/O but the files
named to it.
"""

from neurontools.estimate.calibration import Calibration, CalibrationRow, read_rows
from neurontools.estimate.counted_run import CountedRun
from neurontools.estimate.estimate import Estimate, estimate
from neurontools.estimate.failure import EstimateError
from neurontools.estimate.interval import Interval
from neurontools.estimate.prices import Price, read_prices

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
