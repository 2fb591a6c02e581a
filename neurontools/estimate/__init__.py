"""Public API that estimates the memory, time and cost of a training script on a real instance.

`estimate(run, instance_type)` returns an `Estimate` of a run that neuron-run counted (`CountedRun.from_summary`). The
estimate keeps counted values, list prices and estimated values apart. The package imports no torch, reads no clock and
does no I/O except on the given files.
"""

from neurontools.util.light_imports import lazy_names

TYPE_CHECKING = False  # replaces typing.TYPE_CHECKING, whose import takes several milliseconds
if TYPE_CHECKING:
    from neurontools.estimate.calibration import Calibration, CalibrationRow, Interval, read_rows
    from neurontools.estimate.counted_run import CountedRun, EstimateError
    from neurontools.estimate.inference import CountedModel, InferenceEstimate, counted_models, estimate_inference
    from neurontools.estimate.instances import Price, read_prices
    from neurontools.estimate.training import Estimate, estimate

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
if not TYPE_CHECKING:
    __getattr__, __dir__ = lazy_names(
        __name__,
        __all__,
        "counted_run",
        "instances",
        "calibration",
        "training",
        "inference",
    )
