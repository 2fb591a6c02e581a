"""Hosts, tokens and reports for tests of the ledger."""

from __future__ import annotations

from typing import Any

from neurond.ownership.holding import CoreReport, Report
from neurond.ownership.ledger import Ledger
from neurond.ownership.shape import Shape

from neurontools import model

TRN1 = Shape(2, 2, 2, 16 * 2**30, 1, (1,))


INF1 = Shape(1, 4, 2, 4 * 2**30, 1, (1,))


TRN2 = Shape(2, 8, 4, 1000, 2, (1, 2))


LARGEST = 2**63 - 1


def entered(of: Ledger, token: str, pid: int | None = None) -> str:
    of.enter(token, pid or 100 + len(list(of.holdings)), 0, 1.0)
    return token


def report_of(cores: dict[int, CoreReport], measured_at_seconds: float = 1.0) -> Report:
    return Report(measured_at_seconds, cores)


def core_report(name: str, value: Any) -> CoreReport:
    values: dict[str, Any] = {name: value}
    return CoreReport(**values)


def tensors(size_bytes: int) -> CoreReport:
    return CoreReport(memory=model.DeviceMemory(tensors_bytes=size_bytes))
