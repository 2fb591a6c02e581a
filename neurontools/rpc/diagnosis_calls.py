"""Reports the results of neuron-diag to the daemon."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol

from neurontools.rpc import neuron_pb2
from neurontools.rpc.ask import ask

MOST_RESULTS = 4096
_TIMEOUT_SECONDS = 10.0
_METHOD = "/neurontools.v1.DiagnosisService/ReportDiagnosis"


class ReportedResult(Protocol):
    """A result of a test that passed or failed."""

    @property
    def test(self) -> str: ...
    @property
    def reason(self) -> str: ...
    @property
    def action(self) -> str: ...
    @property
    def device_index(self) -> int | None: ...
    @property
    def neuroncore_index(self) -> int | None: ...
    @property
    def injected(self) -> bool: ...


def report_diagnosis(
    socket_path: str, level: int, failed: Iterable[ReportedResult], passed: Iterable[ReportedResult]
) -> int:
    """Reports a run to the daemon, and returns the number of findings that the daemon keeps.

    Leaves out results beyond MOST_RESULTS, the passed ones first. Raises UserError if the daemon refuses.
    """
    message = neuron_pb2.ReportDiagnosisRequest(level=level)
    for is_failed, results in ((True, failed), (False, passed)):
        for result in results:
            if len(message.results) < MOST_RESULTS:
                message.results.add(
                    test=result.test,
                    failed=is_failed,
                    device_index=result.device_index,
                    neuroncore_index=result.neuroncore_index,
                    reason=result.reason if is_failed else "",
                    action=result.action,
                    injected=result.injected,
                )
    reply = ask(socket_path, _METHOD, message.SerializeToString(), _TIMEOUT_SECONDS)
    return neuron_pb2.ReportDiagnosisResponse.FromString(reply).findings
