"""All kinds of faults.

Sources: status codes, log lines and counters are those of the Neuron SDK's documentation (nrt-troubleshoot) and of
nrt_status.h; that an aborted DMA outlives its process is aws-neuron-sdk#1390. What `lasts` says of the others is
concluded from what the runtime advises.
"""

from __future__ import annotations

from neurontools.driver.kernel_log import DMA_ERROR, HBM_ERROR, NEURONCORE_ERROR, SRAM_ERROR
from neurontools.driver.neuron_runtime import NrtStatus
from neurontools.faults.kind import Amount, Effect, FaultKind, Lasting, LogLine

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

PARTS = (
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
"""The parts of a device whose health the driver tells, in its words."""

_ALL = (
    FaultKind(
        "sram-uncorrectable",
        "an uncorrectable error in the SRAM of a NeuronCore",
        Lasting.REPLACEMENT,
        Effect.FAILS,
        NrtStatus.EXEC_HW_ERR_NC_UE,
        (LogLine(_ERRORS, _NC),),
        ecc=("sram_uncorrected_total",),
        counter="hw_nc_ue_error",
        kernel_error=SRAM_ERROR,
        findings=("ecc_uncorrected", "core_errors", "hardware_errors", "needs_reset"),
    ),
    FaultKind(
        "nc-uncorrectable",
        "an uncorrectable error in a NeuronCore, outside of what ECC counts",
        Lasting.REPLACEMENT,
        Effect.FAILS,
        NrtStatus.EXEC_HW_ERR_NC_UE,
        (LogLine(_ERRORS, _NC),),
        counter="hw_nc_ue_error",
        kernel_error=NEURONCORE_ERROR,
        findings=("core_errors", "hardware_errors", "needs_reset"),
    ),
    FaultKind(
        "hbm-uncorrectable",
        "an uncorrectable error in HBM that can't be repaired",
        Lasting.REPLACEMENT,
        Effect.FAILS,
        NrtStatus.EXEC_HW_ERR_HBM_UE,
        (LogLine(_ERRORS, f"{_HBM}Please terminate this instance to recover from bad hardware."),),
        ecc=("mem_uncorrected_total",),
        counter="hw_hbm_ue_error",
        kernel_error=HBM_ERROR,
        findings=("ecc_uncorrected", "core_errors", "hardware_errors", "needs_reset"),
    ),
    FaultKind(
        "hbm-repairable",
        "an uncorrectable error in HBM that reloading the driver repairs",
        Lasting.RESET,
        Effect.FAILS,
        NrtStatus.EXEC_HW_ERR_REPAIRABLE_HBM_UE,
        (LogLine(_ERRORS, f"{_HBM}Please reload the neuron driver or reboot your EC2 instance to repair it."),),
        ecc=("mem_repairable_uncorrected_total",),
        counter="hw_repairable_hbm_ue_error",
        findings=("ecc_repairable", "core_errors", "hardware_errors", "needs_reset"),
    ),
    FaultKind(
        "dma-abort",
        "an aborted DMA transfer, which outlives the process that met it",
        Lasting.RESET,
        Effect.FAILS,
        NrtStatus.EXEC_HW_ERR_DMA_ABORT,
        (LogLine(_ERRORS, "[MLA {device}][NC {core}] DMA TX engine {engine} is in an abort state"),),
        counter="hw_dma_abort_error",
        kernel_error=DMA_ERROR,
        findings=("core_errors", "hardware_errors", "needs_reset"),
        source="https://github.com/aws-neuron/aws-neuron-sdk/issues/1390",
    ),
    FaultKind(
        "hang-compute",
        "an execution that never ends by itself",
        Lasting.ONE_EXECUTION,
        Effect.HANGS,
        NrtStatus.TIMEOUT,
        (
            LogLine(_STATUS, "Missing infer_status notification: (end:0)"),
            LogLine(
                _ERRORS,
                "(FATAL-RT-UNDEFINED-STATE) execution timeout ({timeout_ms} ms) on Neuron Device {device} NC {core}, "
                "model {model}, waiting for execution completion notification",
            ),
        ),
        counter="timeout",
        findings=("stuck", "needs_reset"),
    ),
    FaultKind(
        "hang-collective",
        "a collective that never ends by itself",
        Lasting.ONE_EXECUTION,
        Effect.HANGS_IN_COLLECTIVE,
        NrtStatus.EXEC_HW_ERR_COLLECTIVES,
        (LogLine(_ERRORS, _COLLECTIVE),),
        counter="hw_collectives_error",
        findings=("stuck", "core_errors"),
    ),
    FaultKind(
        "link-down",
        "a NeuronLink that is down: collectives over it hang",
        Lasting.CONDITION,
        Effect.HANGS_IN_COLLECTIVE,
        NrtStatus.EXEC_HW_ERR_COLLECTIVES,
        (LogLine(_ERRORS, _COLLECTIVE),),
        counter="hw_collectives_error",
        component="link_intraserver",
        findings=("unhealthy_component", "stuck", "core_errors"),
    ),
    FaultKind(
        "numerical",
        "an execution whose results hold NaN",
        Lasting.ONE_EXECUTION,
        Effect.HAS_NAN,
        NrtStatus.EXEC_COMPLETED_WITH_NUM_ERR,
        (LogLine(_NOTIFICATIONS, "Error notifications found on NC {core}; action=INFER_ERROR_SUBTYPE_NUMERICAL"),),
        counter="execute_completed_with_num_error",
        findings=("numerical_errors",),
    ),
    FaultKind(
        "out-of-bounds",
        "a scatter or gather beyond the end of a tensor",
        Lasting.ONE_EXECUTION,
        Effect.FAILS,
        NrtStatus.EXEC_OOB,
        (
            LogLine(
                _NOTIFICATIONS,
                "Received notification generated at runtime: failed to run scatter/gather (indirect memory copy), due "
                "to out-of-bound access.",
            ),
        ),
        counter="oob_error",
    ),
    FaultKind(
        "queue-overflow",
        "a notification queue of the runtime that overflows",
        Lasting.ONE_EXECUTION,
        Effect.FAILS,
        NrtStatus.EXEC_SW_NQ_OVERFLOW,
        (LogLine(_ERRORS, "Notification queue overflow on NC {core}; set NEURON_RT_ENABLE_DGE_NOTIFICATIONS=0"),),
        counter="execute_sw_nq_overflow",
    ),
    FaultKind(
        "network-proxy",
        "a failure of the runtime's proxy for EFA",
        Lasting.PROCESS,
        Effect.FAILS,
        NrtStatus.NETWORK_PROXY_FAILURE,
        (LogLine(_ERRORS, "Network proxy failure on Neuron Device {device} NC {core}"),),
    ),
    FaultKind(
        "execution-unit-lost",
        "an execution unit that only a new process gets back",
        Lasting.PROCESS,
        Effect.FAILS,
        NrtStatus.EXEC_UNIT_UNRECOVERABLE,
        (LogLine(_ERRORS, "Execution unit of Neuron Device {device} NC {core} is unrecoverable"),),
        findings=("hardware_errors", "needs_reset"),
    ),
    FaultKind(
        "device-lost",
        "a device that is gone, and with it the links of all others, which the driver lists by their number",
        Lasting.CONDITION,
        Effect.FAILS,
        NrtStatus.INVALID,
        (LogLine(_ERRORS, "Could not open the nd{device}"),),
        loses_device=True,
        findings=("device_missing",),
    ),
    FaultKind(
        "host-lost",
        "a host that is gone, and boots anew when it comes back (neuron-fleet-sim)",
        Lasting.CONDITION,
        loses_host=True,
    ),
    FaultKind(
        "part-unhealthy",
        "a part that the driver calls unhealthy (Trainium2 and later)",
        Lasting.CONDITION,
        component="firmware_service_processor",
        findings=("unhealthy_component",),
        takes_part=True,
    ),
    FaultKind(
        "slow-core",
        "a NeuronCore that computes slower than it should",
        Lasting.CONDITION,
        Effect.IS_SLOW,
        findings=("latency_risen",),
        amount=Amount("times as long", 2, 1, 1000),
    ),
    FaultKind(
        "collective-latency",
        "collectives that take longer",
        Lasting.CONDITION,
        Effect.IS_LATE_IN_COLLECTIVES,
        findings=("latency_risen",),
        amount=Amount("ms", 100, 0.1, 600_000),
    ),
    FaultKind(
        "bit-flip",
        "silent data corruption: bits of one result flip, and nobody tells",
        Lasting.ONE_EXECUTION,
        Effect.HAS_FLIPPED_BITS,
        amount=Amount("bits", 1, 1, 1024, is_whole=True),
    ),
    FaultKind(
        "reports-lost",
        "what processes tell the daemon is lost; they go on",
        Lasting.CONDITION,
        loses_reports=True,
        findings=("stale_report",),
    ),
    FaultKind(
        "ecc-corrected",
        "corrected errors in HBM; training goes on",
        Lasting.CONDITION,
        ecc=("mem_corrected_total",),
        findings=("ecc_corrected",),
        amount=Amount("errors", 100, 1, 1e9, is_whole=True),
    ),
)

KINDS: dict[str, FaultKind] = {kind.name: kind for kind in _ALL}
