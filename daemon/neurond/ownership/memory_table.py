"""The table that goes with an out-of-memory refusal: who holds what of an HBM stack."""

from __future__ import annotations

from collections.abc import Sequence

from neurond.ownership.holding import Holding
from neurond.ownership.shape import Shape
from neurontools.util.units import bytes_text


def memory_table(
    shape: Shape, stack: int, holders: Sequence[tuple[Holding, int]], asking: Holding, asked_bytes: int
) -> str:
    """What is asked for and who holds the stack, a line each; sizes as text and, to the byte, as numbers.

    `holders` has everybody who holds a core of the stack, with the bytes it has there.
    """
    device, stack_on_device = divmod(stack, shape.stacks_per_device)
    free_bytes = shape.stack_bytes - sum(size_bytes for holder, size_bytes in holders if holder is not asking)
    headline = (
        f"out of device memory: PID {asking.pid} asks for {bytes_text(asked_bytes)} on device {device} HBM "
        f"{stack_on_device}, which has {bytes_text(shape.stack_bytes)} and {bytes_text(free_bytes)} for it; "
        "free memory or use more NeuronCores"
    )
    lines = [
        headline,
        f"{'PID':>10}  {'NEURONCORES':<12} {'BYTES':>16}  SIZE",
    ]
    for holder, size_bytes in holders:
        cores = f"{holder.logical_cores[0]}-{holder.logical_cores[-1]}"
        lines.append(f"{holder.pid:>10}  {cores:<12} {size_bytes:>16}  {bytes_text(size_bytes)}")
    lines.append(f"{asking.pid:>10}  {'asks for':<12} {asked_bytes:>16}  {bytes_text(asked_bytes)}")
    return "\n".join(lines)
