"""Public API that estimates the memory, time and cost of a training script on a real instance.

`estimate(run, instance_type)` returns an `Estimate` of a run that neuron-run counted (`CountedRun.from_summary`). The
estimate keeps counted values, list prices and estimated values apart. The package imports no torch, reads no clock and
does no I/O except on the given files.
"""

from neurontools.estimate.calibration import Calibration, CalibrationRow, Interval, read_rows
from neurontools.estimate.counted_run import CountedRun, EstimateError
from neurontools.estimate.estimate import Estimate, estimate
from neurontools.estimate.inference import CountedModel, InferenceEstimate, counted_models, estimate_inference
from neurontools.estimate.instances import Price, read_prices

__all__ = [
    "Calibration",
    "CalibrationRow",
    "CountedModel",
    "CountedRun",
    "Estimate",
    "EstimateError",
    "InferenceEstimate",
    "Interval",
    "Price",
    "counted_models",
    "estimate",
    "estimate_inference",
    "read_prices",
    "read_rows",
]
