"""DiagnosisService of the gRPC API: takes the results of neuron-diag."""

from __future__ import annotations

import asyncio
import contextlib
import re
from collections.abc import Callable, Collection
from typing import Any

import grpc

from neurond.peers.limits import PeerCredentials
from neurond.service.monitor_service import Context, admit_daemon_user
from neurond.snapshots.store import SnapshotStore
from neurond.verdicts.diagnosis import DiagnosedTest, DiagnosisRecord
from neurond.verdicts.rule_evaluator import evaluated_devices
from neurontools.model import Snapshot
from neurontools.model.finding import FindingKind
from neurontools.rpc import neuron_pb2
from neurontools.rpc.diagnosis_calls import MOST_RESULTS
from neurontools.util.terminal import excerpt

_HIGHEST_LEVEL = 9
_HIGHEST_CORE = 65_535
_TEST_NAME = re.compile(r"[a-z0-9-]{1,64}")
_MOST_CHARACTERS = 500
_SHOWN_SECONDS = 1.0  # longest wait for the snapshot that has the findings


class DiagnosisService:
    """Keeps the failed tests that the daemon's user or root reports. `peer_of_call` returns the peer of a call."""

    def __init__(self, store: SnapshotStore, record: DiagnosisRecord) -> None:
        self._store = store
        self._record = record
        self.peer_of_call: Callable[[Context], PeerCredentials | None] = lambda _context: None

    async def report(self, request: neuron_pb2.ReportDiagnosisRequest, context: Context) -> bytes:
        """Adds the results of a run. Returns when snapshots have the findings, after a second at most."""
        await admit_daemon_user(self.peer_of_call(context), "report results of neuron-diag", context)
        try:
            results = _read_run(request, evaluated_devices(self._store.latest.snapshot))
        except ValueError as error:
            await context.abort(grpc.StatusCode.INVALID_ARGUMENT, str(error))
        self._record.add_run(results)
        kept = {(finding.identity, finding.reason) for finding in self._record.findings(0.0)}
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_SHOWN_SECONDS):
                while _shown(self._store.latest.snapshot) != kept:
                    await self._store.after(self._store.latest.snapshot.sequence)
        return neuron_pb2.ReportDiagnosisResponse(findings=len(kept)).SerializeToString()


def _shown(snapshot: Snapshot) -> set[tuple[object, str]]:
    """Returns identity and reason of the findings of neuron-diag in a snapshot."""
    findings = () if snapshot.health is None else snapshot.health.findings
    return {(each.identity, each.reason) for each in findings if each.kind == FindingKind.TEST_FAILED}


def _read_run(request: neuron_pb2.ReportDiagnosisRequest, devices: Collection[int]) -> list[DiagnosedTest]:
    """Parses the results of a run. Raises ValueError if one is invalid."""
    if not 1 <= request.level <= _HIGHEST_LEVEL:
        raise ValueError(f"level must be from 1 to {_HIGHEST_LEVEL}")
    if len(request.results) > MOST_RESULTS:
        raise ValueError(f"more than {MOST_RESULTS} results at once")
    return [_read_result(each, request.level, devices) for each in request.results]


def _read_result(message: neuron_pb2.DiagnosisResult, level: int, devices: Collection[int]) -> DiagnosedTest:
    if not _TEST_NAME.fullmatch(message.test):
        raise ValueError("test must have 1 to 64 small letters, digits and hyphens")

    def optional(name: Any) -> int | None:
        return getattr(message, name) if message.HasField(name) else None

    device_index, core_index = optional("device_index"), optional("neuroncore_index")
    if device_index is not None and device_index not in devices:
        raise ValueError(f"no device {device_index} on this host")
    if core_index is not None and core_index > _HIGHEST_CORE:
        raise ValueError(f"neuroncore_index is above {_HIGHEST_CORE}")
    return DiagnosedTest(
        message.test,
        level,
        message.failed,
        device_index,
        core_index,
        excerpt(message.reason, _MOST_CHARACTERS),
        excerpt(message.action, _MOST_CHARACTERS),
        message.injected,
    )
