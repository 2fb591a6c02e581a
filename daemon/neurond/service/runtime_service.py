"""RuntimeService of the gRPC API: attach and report."""

from __future__ import annotations

import time
from typing import Any

import grpc

from neurond.faults.faults import Faults
from neurond.ownership import ledger
from neurond.ownership.holding import Holding
from neurond.service.report_reader import read_report
from neurond.snapshots.ticks import Ticks
from neurond.system.steady_clock import SteadyClock
from neurontools.driver.neuron_runtime import CoreRequest
from neurontools.rpc import neuron_pb2
from neurontools.util.version import __version__

Context = grpc.aio.ServicerContext[Any, Any]

MAX_TAG_CHARACTERS = 255
MAX_VERSION_CHARACTERS = 64

STATUS = {
    ledger.UnknownToken: grpc.StatusCode.UNAUTHENTICATED,
    ledger.AlreadyAttached: grpc.StatusCode.FAILED_PRECONDITION,
    ledger.ImpossibleRequest: grpc.StatusCode.OUT_OF_RANGE,
    ledger.CoresUnavailable: grpc.StatusCode.RESOURCE_EXHAUSTED,
    ledger.OutOfDeviceMemory: grpc.StatusCode.RESOURCE_EXHAUSTED,
    ledger.InvalidReport: grpc.StatusCode.INVALID_ARGUMENT,
}


class RuntimeService:
    """Attach and Report over a ledger; replies are ready-made bytes. `faults` are those of a simulated host."""

    def __init__(
        self,
        ledger_: ledger.Ledger,
        instance_type: str,
        ticks: Ticks,
        clock: SteadyClock,
        faults: Faults | None = None,
    ) -> None:
        self._faults = faults
        self._ledger = ledger_
        self._instance_type = instance_type
        self._ticks = ticks
        self._clock = clock

    async def attach(self, request: neuron_pb2.AttachRequest, context: Context) -> bytes:
        """Gives the caller its cores."""
        try:
            holding = self._attach(request)
        except ledger.Refusal as refusal:
            await context.abort(STATUS[type(refusal)], str(refusal))
        return self._attached(holding).SerializeToString()

    async def report(self, request: neuron_pb2.ReportRequest, context: Context) -> bytes:
        """Takes the caller's report."""
        try:
            core_count = self._ledger.known(request.token).count
            report = read_report(request.report, core_count, time.monotonic(), self._clock)
            if self._faults is None or not self._faults.loses_reports(request.token):
                self._ledger.report(request.token, report)
        except ledger.Refusal as refusal:
            await context.abort(STATUS[type(refusal)], str(refusal))
        return b""

    def _attach(self, request: neuron_pb2.AttachRequest) -> Holding:
        if len(request.tag) > MAX_TAG_CHARACTERS:
            raise ledger.InvalidReport(f"the tag is longer than {MAX_TAG_CHARACTERS} characters; shorten it")
        if len(request.runtime_version) > MAX_VERSION_CHARACTERS:
            raise ledger.InvalidReport(f"runtime_version is longer than {MAX_VERSION_CHARACTERS} characters")
        holding = self._ledger.attach(request.token, _core_request(request), request.tag, request.runtime_version)
        if self._faults is not None:
            self._faults.greet(request.token)
        return holding

    def _attached(self, holding: Holding) -> neuron_pb2.AttachResponse:
        shape = self._ledger.shape
        response = neuron_pb2.AttachResponse(
            instance_type=self._instance_type,
            logical_neuroncore_config=holding.lnc,
            interval_seconds=self._ticks.interval_seconds,
            daemon_version=__version__,
            pid=holding.pid,
            report_at_seconds=self._ticks.report_at(holding.pid),
        )
        for index in holding.logical_cores:
            physical = shape.physical_cores(index, holding.lnc)
            response.cores.add(
                neuroncore_index=index,
                device_index=shape.device_of(physical[0]),
                core_indices=physical,
                hbm_bytes=shape.stack_bytes,
                hbm_index=shape.stack_of(physical[0]) % shape.stacks_per_device,
            )
        return response


def _core_request(request: neuron_pb2.AttachRequest) -> CoreRequest:
    lnc = request.logical_neuroncore_config or None
    match request.WhichOneof("cores"):
        case "visible_cores":
            return CoreRequest(request.visible_cores.first, request.visible_cores.count, lnc)
        case "core_count":
            return CoreRequest(count=request.core_count, logical_neuroncore_config=lnc)
        case "all_cores":
            return CoreRequest(logical_neuroncore_config=lnc)
        case _:
            raise ledger.InvalidReport("no cores asked for; set visible_cores, core_count or all_cores")
