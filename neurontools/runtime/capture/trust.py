"""Which operators may wait in a graph: those whose meta kernels announce what the CPU's kernels return."""

from __future__ import annotations

from neurontools.runtime.capture.following import following
from neurontools.runtime.counting.metrics import metrics
from neurontools.runtime.operators.operator import DeviceOperator, signatures
from neurontools.runtime.reporting.stderr_lines import warn_once


def distrust(operator: DeviceOperator) -> None:
    """From here on the operator runs at once: its meta kernel announced what the CPU does not return."""
    if not operator.dynamic:
        operator.dynamic = True
        metrics.increment(f"WrongMetaKernel:{operator.name}")
    signatures.clear()
    following.forget_all()
    warn_once(
        operator.name,
        f"{operator.name}: its meta kernel announces other results than its CPU kernel returns; it runs on the host, "
        "outside of graphs, and is counted in torch_xla.debug.metrics",
    )
