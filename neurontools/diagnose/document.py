"""The JSON document of neuron-diag."""

from __future__ import annotations

from typing_extensions import TypedDict


class ResultDocument(TypedDict):
    """Result of one test on the host, a device or a core."""

    test: str
    outcome: str
    device_index: int | None
    peer_device_index: int | None
    neuroncore_index: int | None
    reason: str
    action: str | None
    measured: float | None
    expected: float | None
    unit: str | None
    source: str | None
    injected: bool


class DiagDocument(TypedDict):
    """The report of a run."""

    version: str
    level: int
    instance_type: str | None
    simulated: bool | None
    devices: int | None
    began_at_unix_seconds: float
    seconds: float
    stack: str | None
    proves: str
    kept: str | None
    exit_code: int
    summary: str
    results: list[ResultDocument]
