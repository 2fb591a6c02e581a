"""Table of fault kinds and their symptoms, which the daemon, the runtime, the commands and the documents share."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from neurontools.driver.kernel_log import DMA_ERROR, HBM_ERROR, NEURONCORE_ERROR, SRAM_ERROR
from neurontools.driver.neuron_runtime import DEFAULT_TIMEOUT_SECONDS, NrtStatus


class FaultDuration(StrEnum):
    """How long a fault lasts if nobody heals it. The text of each member completes the sentence "it lasts …"."""

    ONE_EXECUTION = "one execution"
    PROCESS = "as long as the process: every later execution of it fails too"
    RESET = "until the device is reset: later processes meet it too"
    REPLACEMENT = "until the host is replaced: later processes meet it too"
    CONDITION = "until it is healed"


class FaultEffect(StrEnum):
    """Effect of a fault on an execution. The text of each member completes the sentence "the execution …"."""

    NONE = "goes on"
    FAILS = "fails"
    HANGS = "hangs until its time-out, then fails"
    HANGS_IN_COLLECTIVE = "hangs in its next collective until its time-out, then fails"
    HAS_NAN = "has NaN in its results"
    HAS_FLIPPED_BITS = "has wrong results, without an error"
    IS_SLOW = "takes longer"
    IS_LATE_IN_COLLECTIVES = "takes longer in each collective"
    HAS_SLOW_LINK = "takes longer in each collective over the link"


@dataclass(frozen=True, slots=True)
class FaultAmount:
    """Unit, default and bounds of a fault's amount, a number that sets its strength."""

    unit: str
    default: float
    least: float
    most: float
    is_whole: bool = False


@dataclass(frozen=True, slots=True)
class RuntimeLogLine:
    """A line of the runtime's log: the function that writes it, and a template of the text.

    Templates may use the fields `device`, `core` (its number on the device), `engine`, `timeout_ms`, `model` and
    `collectives` (how many the model has).
    """

    function: str
    text: str


@dataclass(frozen=True, slots=True)
class FaultKind:
    """A kind of fault and its symptoms.

    * `ecc`: the device's ECC counters that increase when the fault begins.
    * `component`: the part of the device that the driver reports as unhealthy while the fault lasts.
    * `counter`: the driver's status counter that increases for the core.
    * `kernel_error`: the error name in the kernel log.
    * `accepts_peer`: the fault affects the link to one other device, or all links of its device.
    * `loses_host`: the fault takes down the whole host, so a request names no device, core or process.
    * `log`: lines of the runtime's log. The last line is the error text.
    * `findings`: the kinds of findings (`FindingKind`) that the daemon reports.
    * `finding_delay_seconds`: time until the first finding under default settings, beside FOUND_WITHIN_SECONDS.
    """

    name: str
    summary: str
    lasts: FaultDuration
    effect: FaultEffect = FaultEffect.NONE
    status: NrtStatus = NrtStatus.SUCCESS
    log: tuple[RuntimeLogLine, ...] = ()
    ecc: tuple[str, ...] = ()
    counter: str | None = None
    kernel_error: str | None = None
    component: str | None = None
    loses_device: bool = False
    loses_reports: bool = False
    loses_host: bool = False
    findings: tuple[str, ...] = ()
    finding_delay_seconds: float = 0.0
    amount: FaultAmount | None = None
    accepts_part: bool = False
    accepts_peer: bool = False
    source: str = ""

    @property
    def affects_executions(self) -> bool:
        return self.effect is not FaultEffect.NONE

    @property
    def corrupts_results(self) -> bool:
        """Whether wrong values may stay in a process, such as NaN in its weights, even if the fault is healed."""
        return self.effect in (FaultEffect.HAS_NAN, FaultEffect.HAS_FLIPPED_BITS)

    @property
    def found_within_seconds(self) -> float | None:
        """Time from the begin of the fault to its first finding, in seconds; None: no rule finds the fault."""
        return self.finding_delay_seconds + FOUND_WITHIN_SECONDS if self.findings else None

    @property
    def outlives_process(self) -> bool:
        """Whether the fault also affects processes that start later."""
        return self.lasts not in (FaultDuration.ONE_EXECUTION, FaultDuration.PROCESS)


FOUND_WITHIN_SECONDS = 2.0
"""Time of a report to the daemon and of the daemon's next tick, at the default interval of one second."""
LINK_BYTES_PER_SECOND = 1e9
"""Speed of a simulated link without a fault, about that of the host's memory and network."""
_LATENCY_SECONDS = 90.0  # three tenths of the window of the health rules

_ERRORS = "TDRV:exec_request_process_errors"
_STATUS = "TDRV:exec_consume_tpb_status_notifications"
_NOTIFICATIONS = "TDRV:notification_consume_errors"
_HBM = "(FATAL-RT-UNDEFINED-STATE) Uncorrectable HBM memory error is detected. Execution results may be invalid. "
_NC = (
    "(FATAL-RT-UNDEFINED-STATE) [ND {device}][NC {core}] Uncorrectable memory error is detected, metadata: 0x16. "
    "Please terminate or stop/start this instance to recover from bad hardware."
)

_COLLECTIVE = (
    "(FATAL-RT-UNDEFINED-STATE) missing collectives status on Neuron Device {device} NC {core}, model {model} - "
    "suspected hang in collectives operation 0 out of {collectives}"
)

DEVICE_PARTS = (
    "hbm",
    "sram",
    "firmware_service_api",
    "firmware_service_processor",
    "link_intraserver",
    "link_host",
    "link_efa",
    "link_interserver",
    "link_switch",
    "axi_fabric",
)
"""The driver's names of the device parts whose health it reports."""

_ALL = (
    FaultKind(
        "sram-uncorrectable",
        "an uncorrectable error in the SRAM of a NeuronCore",
        FaultDuration.REPLACEMENT,
        FaultEffect.FAILS,
        NrtStatus.EXEC_HW_ERR_NC_UE,
        (RuntimeLogLine(_ERRORS, _NC),),
        ecc=("sram_uncorrected_total",),
        counter="hw_nc_ue_error",
        kernel_error=SRAM_ERROR,
        findings=("ecc_uncorrected", "core_errors", "hardware_errors", "needs_reset"),
    ),
    FaultKind(
        "nc-uncorrectable",
        "an uncorrectable error in a NeuronCore, outside of what ECC counts",
        FaultDuration.REPLACEMENT,
        FaultEffect.FAILS,
        NrtStatus.EXEC_HW_ERR_NC_UE,
        (RuntimeLogLine(_ERRORS, _NC),),
        counter="hw_nc_ue_error",
        kernel_error=NEURONCORE_ERROR,
        findings=("core_errors", "hardware_errors", "needs_reset"),
    ),
    FaultKind(
        "hbm-uncorrectable",
        "an uncorrectable error in HBM that can't be repaired",
        FaultDuration.REPLACEMENT,
        FaultEffect.FAILS,
        NrtStatus.EXEC_HW_ERR_HBM_UE,
        (RuntimeLogLine(_ERRORS, f"{_HBM}Please terminate this instance to recover from bad hardware."),),
        ecc=("mem_uncorrected_total",),
        counter="hw_hbm_ue_error",
        kernel_error=HBM_ERROR,
        findings=("ecc_uncorrected", "core_errors", "hardware_errors", "needs_reset"),
    ),
    FaultKind(
        "hbm-repairable",
        "an uncorrectable error in HBM that reloading the driver repairs",
        FaultDuration.RESET,
        FaultEffect.FAILS,
        NrtStatus.EXEC_HW_ERR_REPAIRABLE_HBM_UE,
        (RuntimeLogLine(_ERRORS, f"{_HBM}Please reload the neuron driver or reboot your EC2 instance to repair it."),),
        ecc=("mem_repairable_uncorrected_total",),
        counter="hw_repairable_hbm_ue_error",
        findings=("ecc_repairable", "core_errors", "hardware_errors", "needs_reset"),
    ),
    FaultKind(
        "dma-abort",
        "an aborted DMA transfer, which outlives the process that met it",
        FaultDuration.RESET,
        FaultEffect.FAILS,
        NrtStatus.EXEC_HW_ERR_DMA_ABORT,
        (RuntimeLogLine(_ERRORS, "[MLA {device}][NC {core}] DMA TX engine {engine} is in an abort state"),),
        counter="hw_dma_abort_error",
        kernel_error=DMA_ERROR,
        findings=("core_errors", "hardware_errors", "needs_reset"),
        source="https://github.com/aws-neuron/aws-neuron-sdk/issues/1390",
    ),
    FaultKind(
        "hang-compute",
        "an execution that never ends by itself",
        FaultDuration.ONE_EXECUTION,
        FaultEffect.HANGS,
        NrtStatus.TIMEOUT,
        (
            RuntimeLogLine(_STATUS, "Missing infer_status notification: (end:0)"),
            RuntimeLogLine(
                _ERRORS,
                "(FATAL-RT-UNDEFINED-STATE) execution timeout ({timeout_ms} ms) on Neuron Device {device} NC {core}, "
                "model {model}, waiting for execution completion notification",
            ),
        ),
        counter="timeout",
        findings=("stuck", "failed_executions", "core_errors", "needs_reset"),
        finding_delay_seconds=DEFAULT_TIMEOUT_SECONDS,
    ),
    FaultKind(
        "hang-collective",
        "a collective that never ends by itself",
        FaultDuration.ONE_EXECUTION,
        FaultEffect.HANGS_IN_COLLECTIVE,
        NrtStatus.EXEC_HW_ERR_COLLECTIVES,
        (RuntimeLogLine(_ERRORS, _COLLECTIVE),),
        counter="hw_collectives_error",
        findings=("stuck", "failed_executions", "core_errors"),
        finding_delay_seconds=DEFAULT_TIMEOUT_SECONDS,
    ),
    FaultKind(
        "link-down",
        "a NeuronLink that is down: collectives over it hang",
        FaultDuration.CONDITION,
        FaultEffect.HANGS_IN_COLLECTIVE,
        NrtStatus.EXEC_HW_ERR_COLLECTIVES,
        (RuntimeLogLine(_ERRORS, _COLLECTIVE),),
        counter="hw_collectives_error",
        component="link_intraserver",
        findings=("unhealthy_component", "stuck", "failed_executions", "core_errors"),
    ),
    FaultKind(
        "numerical",
        "an execution whose results hold NaN",
        FaultDuration.ONE_EXECUTION,
        FaultEffect.HAS_NAN,
        NrtStatus.EXEC_COMPLETED_WITH_NUM_ERR,
        (
            RuntimeLogLine(
                _NOTIFICATIONS, "Error notifications found on NC {core}; action=INFER_ERROR_SUBTYPE_NUMERICAL"
            ),
        ),
        counter="execute_completed_with_num_error",
        findings=("numerical_errors",),
    ),
    FaultKind(
        "out-of-bounds",
        "a scatter or gather beyond the end of a tensor",
        FaultDuration.ONE_EXECUTION,
        FaultEffect.FAILS,
        NrtStatus.EXEC_OOB,
        (
            RuntimeLogLine(
                _NOTIFICATIONS,
                "Received notification generated at runtime: failed to run scatter/gather (indirect memory copy), due "
                "to out-of-bound access.",
            ),
        ),
        counter="oob_error",
        findings=("failed_executions", "core_errors"),
    ),
    FaultKind(
        "queue-overflow",
        "a notification queue of the runtime that overflows",
        FaultDuration.ONE_EXECUTION,
        FaultEffect.FAILS,
        NrtStatus.EXEC_SW_NQ_OVERFLOW,
        (
            RuntimeLogLine(
                _ERRORS, "Notification queue overflow on NC {core}; set NEURON_RT_ENABLE_DGE_NOTIFICATIONS=0"
            ),
        ),
        counter="execute_sw_nq_overflow",
        findings=("failed_executions", "core_errors"),
    ),
    FaultKind(
        "network-proxy",
        "a failure of the runtime's proxy for EFA",
        FaultDuration.PROCESS,
        FaultEffect.FAILS,
        NrtStatus.NETWORK_PROXY_FAILURE,
        (RuntimeLogLine(_ERRORS, "Network proxy failure on Neuron Device {device} NC {core}"),),
        findings=("failed_executions",),
    ),
    FaultKind(
        "execution-unit-lost",
        "an execution unit that only a new process gets back",
        FaultDuration.PROCESS,
        FaultEffect.FAILS,
        NrtStatus.EXEC_UNIT_UNRECOVERABLE,
        (RuntimeLogLine(_ERRORS, "Execution unit of Neuron Device {device} NC {core} is unrecoverable"),),
        findings=("hardware_errors", "needs_reset"),
    ),
    FaultKind(
        "device-lost",
        "a device that is gone, and with it the links of all others, which the driver lists by their number",
        FaultDuration.CONDITION,
        FaultEffect.FAILS,
        NrtStatus.INVALID,
        (RuntimeLogLine(_ERRORS, "Could not open the nd{device}"),),
        loses_device=True,
        findings=("device_missing", "failed_executions"),
    ),
    FaultKind(
        "host-lost",
        "a host that is gone, and boots anew when it comes back (neuron-fleet-sim)",
        FaultDuration.CONDITION,
        loses_host=True,
    ),
    FaultKind(
        "part-unhealthy",
        "a part that the driver calls unhealthy (Trainium2 and later)",
        FaultDuration.CONDITION,
        component="firmware_service_processor",
        findings=("unhealthy_component",),
        accepts_part=True,
    ),
    FaultKind(
        "slow-core",
        "a NeuronCore that computes slower than it should",
        FaultDuration.CONDITION,
        FaultEffect.IS_SLOW,
        findings=("latency_risen",),
        finding_delay_seconds=_LATENCY_SECONDS,
        amount=FaultAmount("times as long", 2, 1, 1000),
    ),
    FaultKind(
        "collective-latency",
        "collectives that take longer",
        FaultDuration.CONDITION,
        FaultEffect.IS_LATE_IN_COLLECTIVES,
        findings=("latency_risen",),
        finding_delay_seconds=_LATENCY_SECONDS,
        amount=FaultAmount("ms", 100, 0.1, 600_000),
    ),
    FaultKind(
        "slow-link",
        "a NeuronLink over which collectives take longer; all links of the device without a peer",
        FaultDuration.CONDITION,
        FaultEffect.HAS_SLOW_LINK,
        amount=FaultAmount("times as long", 4, 1, 1000),
        accepts_peer=True,
    ),
    FaultKind(
        "bit-flip",
        "silent data corruption: bits of one result flip, without an error",
        FaultDuration.ONE_EXECUTION,
        FaultEffect.HAS_FLIPPED_BITS,
        amount=FaultAmount("bits", 1, 1, 1024, is_whole=True),
    ),
    FaultKind(
        "reports-lost",
        "reports of processes to the daemon get lost; the processes continue",
        FaultDuration.CONDITION,
        loses_reports=True,
        findings=("stale_report",),
        finding_delay_seconds=15.0,
    ),
    FaultKind(
        "ecc-corrected",
        "corrected errors in HBM; training goes on",
        FaultDuration.CONDITION,
        ecc=("mem_corrected_total",),
        findings=("ecc_corrected",),
        amount=FaultAmount("errors", 100, 1, 1e9, is_whole=True),
    ),
)

KINDS: dict[str, FaultKind] = {kind.name: kind for kind in _ALL}
