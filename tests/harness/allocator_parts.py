"""Hosts, tokens and reports for tests of the ledger."""

from __future__ import annotations

from neurond.allocator import CoreAllocator, CoreReport, HostShape, RuntimeReport

from neurontools import model
from neurontools.driver.neuron_runtime import CoreRequest

TRN1 = HostShape(2, 2, 2, 16 * 2**30, 1, (1,))
TRN2 = HostShape(2, 8, 4, 1000, 2, (1, 2))
LARGEST = 2**63 - 1
FIRST_PID = 11


def allocator_of(shape: HostShape, *requests: CoreRequest) -> CoreAllocator:
    """A ledger whose processes "a", "b", ... (PIDs 11, 12, ...) hold what they ask for, one after the other."""
    allocator = CoreAllocator(shape)
    for token, request in zip("abcdefgh", requests, strict=False):
        allocator.attach(entered(allocator, token), request)
    return allocator


def entered(allocator: CoreAllocator, token: str, pid: int | None = None) -> str:
    allocator.enter(token, pid or FIRST_PID + len(list(allocator.leases)), 0, 1.0)
    return token


def report_of(cores: dict[int, CoreReport], measured_at_seconds: float = 1.0) -> RuntimeReport:
    return RuntimeReport(measured_at_seconds, cores)


def tensors(size_bytes: int) -> CoreReport:
    return CoreReport(memory=model.DeviceMemory(tensors_bytes=size_bytes))
