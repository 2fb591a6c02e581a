"""The table that goes with an out-of-memory refusal: who holds what of an HBM stack."""

from __future__ import annotations

from typing import TYPE_CHECKING

from neurontools.text.units import bytes_text

if TYPE_CHECKING:
    from neurond.ownership.holding import Holding
    from neurond.ownership.ledger import Ledger


def memory_table(ledger: Ledger, stack: int, asking: Holding, asked_bytes: int) -> str:
    """What is asked for and who holds the stack, a line each; sizes as text and, to the byte, as numbers."""
    shape = ledger.shape
    device, stack_on_device = divmod(stack, shape.stacks_per_device)
    free_bytes = shape.stack_bytes - sum(
        ledger.stack_bytes_of(holder, stack) for holder in ledger.holders_of_stack(stack) if holder is not asking
    )
    headline = (
        f"out of device memory: PID {asking.pid} asks for {bytes_text(asked_bytes)} on device {device} HBM "
        f"{stack_on_device}, which has {bytes_text(shape.stack_bytes)} and {bytes_text(free_bytes)} for it; "
        "free memory or use more NeuronCores"
    )
    lines = [
        headline,
        f"{'PID':>10}  {'NEURONCORES':<12} {'BYTES':>16}  SIZE",
    ]
    for holder in ledger.holders_of_stack(stack):
        size_bytes = ledger.stack_bytes_of(holder, stack)
        cores = f"{holder.logical_cores[0]}-{holder.logical_cores[-1]}"
        lines.append(f"{holder.pid:>10}  {cores:<12} {size_bytes:>16}  {bytes_text(size_bytes)}")
    lines.append(f"{asking.pid:>10}  {'asks for':<12} {asked_bytes:>16}  {bytes_text(asked_bytes)}")
    return "\n".join(lines)
