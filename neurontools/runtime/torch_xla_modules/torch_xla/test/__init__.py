"""torch_xla.test and its module test_utils: the output functions of torch_xla's examples."""

from __future__ import annotations

import importlib
import time
from datetime import datetime
from typing import Any

from ..core import xla_model as xm
from ..debug import metrics as met


def now(format: str = "%H:%M:%S") -> str:  # noqa: A002  (the name of torch_xla)
    return datetime.now().astimezone().strftime(format)


def print_training_update(
    device: Any,
    step: int,
    loss: float,
    rate: float,
    global_rate: float,
    epoch: int | None = None,
    summary_writer: Any = None,
) -> None:
    """Prints the progress of a training, and writes the rates to a summary writer if one is given."""
    epochs = [] if epoch is None else [f"Epoch={epoch}"]
    done = [f"Step={step}", f"Loss={loss:.5f}", f"Rate={rate:.2f}", f"GlobalRate={global_rate:.2f}"]
    _print("Training", device, [*epochs, *done])
    write_to_summary(summary_writer, dict_to_write={"examples/sec": rate, "average_examples/sec": global_rate})


def print_test_update(device: Any, accuracy: float | None, epoch: int | None = None, step: int | None = None) -> None:
    values = {"Step": step, "Epoch": epoch, "Accuracy": None if accuracy is None else f"{accuracy:.2f}"}
    _print("Test", device, [f"{name}={value}" for name, value in values.items() if value is not None])


def _print(label: str, device: Any, parts: list[str]) -> None:
    print("|", label, f"Device={device}/{xm.get_ordinal()}", *parts, f"Time={now()}", flush=True)


def get_summary_writer(logdir: str | None) -> Any:
    """Returns a TensorBoard writer from tensorboardX or torch; None without a directory.

    Raises ImportError if neither is installed.
    """
    if not logdir:
        return None
    try:
        module: Any = importlib.import_module("tensorboardX")
    except ImportError:
        module = importlib.import_module("torch.utils.tensorboard")
    writer = module.SummaryWriter(logdir)
    write_to_summary(writer, 0, {"TensorboardStartTimestamp": time.time()})
    return writer


def write_to_summary(
    summary_writer: Any,
    global_step: int | None = None,
    dict_to_write: dict[str, float] | None = None,
    write_xla_metrics: bool = False,
) -> None:
    """Writes numbers to a TensorBoard summary, with `write_xla_metrics` also the runtime's counters.

    Does nothing without a writer.
    """
    if summary_writer is None:
        return
    written = dict(dict_to_write or {})
    if write_xla_metrics:
        counted = {name: met.counter_value(name) or 0 for name in met.counter_names()}
        written |= counted
        written["aten_ops_sum"] = sum(value for name, value in counted.items() if name.startswith("aten::"))
    for name, value in written.items():
        summary_writer.add_scalar(name, value, global_step)


def close_summary_writer(summary_writer: Any) -> None:
    if summary_writer is not None:
        summary_writer.flush()
        summary_writer.close()
