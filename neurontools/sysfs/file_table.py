"""Every file of the driver's tree as data: path, format, mode, and the driver and hardware that have it.

Reader and writer both go by this table. Paths are relative to a device's directory (`neuron3`), to a core's
(`neuron3/neuron_core0`) or to the root of sysfs. Source: the driver 2.24.7.0 and, for later additions, its release
notes; `utilization_raw` and `healthcheck_heartbeat` are left out because nobody has published their formats.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

# Formats, for `str.format`. Only core_count has no newline.
COUNT = "{}\n"
TEXT = "{}\n"
BARE = "{}"
SERIAL = "{:016x}\n"
POWER = "{},{:d},{:.2f},{:.2f},{:.2f}\n"

_METRIC_MODE = 0o644
_PUBLIC_MODE = 0o444
_PRIVATE_MODE = 0o400
_RESET_MODE = 0o600

# Driver versions that changed the tree.
OPENED_TO_USERS = (2, 28)  # core_count and connected_devices may be read by everybody
LIVE_COUNTERS = (2, 30)  # counters of the runtime move while a process runs, and not only when it ends
POWER_AND_TIME = (2, 21)


@dataclass(frozen=True, slots=True)
class File:
    """One file; `generation` is the first of the hardware (1: Inferentia to 4: Trainium3) that has it."""

    path: str
    format: str
    mode: int = _METRIC_MODE
    since: tuple[int, ...] = (0,)
    generation: int = 1


MEMORY_VALUES = ("total", "present", "peak")
COUNTER_VALUES = ("total", "present")

# stats/memory_usage/device_mem of a core; the field of DeviceMemory is the name with `_bytes` behind it.
DEVICE_MEMORY = (
    "model_code",
    "tensors",
    "constants",
    "model_shared_scratchpad",
    "runtime_memory",
    "driver_memory",
    "collectives",
    "nonshared_scratchpad",
    "notifications",
    "dma_rings",
    "uncategorized",
)
# stats/memory_usage/host_mem of a device; fields of HostMemory.
HOST_MEMORY = (
    "dma_buffers",
    "tensors",
    "constants",
    "application_memory",
    "driver_memory",
    "notifications",
    "dma_rings",
    "uncategorized",
)
# stats/status of a core; the field of StatusCounters is the name with `_total` behind it.
STATUS = (
    "success",
    "failure",
    "timeout",
    "exec_bad_input",
    "hw_error",
    "execute_completed_with_error",
    "execute_completed_with_num_error",
    "generic_error",
    "resource_error",
    "resource_nc_error",
    "execute_failed_to_queue",
    "invalid_error",
    "unsupported_neff_version",
    "oob_error",
    "hw_collectives_error",
    "hw_hbm_ue_error",
    "hw_nc_ue_error",
    "hw_dma_abort_error",
    "execute_sw_nq_overflow",
    "execute_sw_semaphore_error",
    "execute_sw_event_error",
    "execute_sw_psum_collision",
    "execute_sw_sequencer_fatal",
    "hw_repairable_hbm_ue_error",
)
# stats/other_info of a core.
INFERENCES, FLOPS, TIME_IN_USE = "inference_count", "flop_count", "nc_time_in_use"
OTHER_INFO = ("model_load_count", "reset_req_count", "reset_fail_count", INFERENCES, FLOPS, TIME_IN_USE)
# Counters the driver keeps itself; all others come from the runtime's datastore.
DRIVER_COUNTERS = frozenset({"reset_req_count", "reset_fail_count"})

# stats/hardware of a device: the file and the field of EccCounters.
ECC = {
    "sram_ecc_uncorrected": "sram_uncorrected_total",
    "mem_ecc_uncorrected": "mem_uncorrected_total",
    "mem_ecc_repairable_uncorrected": "mem_repairable_uncorrected_total",
    "sram_ecc_corrected": "sram_corrected_total",
    "mem_ecc_corrected": "mem_corrected_total",
}

CONNECTED_DEVICES, CORE_COUNT, DEVICE_NUMBER = "connected_devices", "core_count", "dev"
SERIAL_NUMBER = "info/serial_number"
ARCH_TYPE = "info/architecture/arch_type"
INSTANCE_TYPE = "info/architecture/instance_type"
DEVICE_NAME = "info/architecture/device_name"
POWER_UTILIZATION = "stats/power/utilization"
UNHEALTHY_COMPONENTS = "stats/hardware/health_status/unhealthy_components"


def status_path(name: str, value: str = "total") -> str:
    """A status counter of a core."""
    return f"stats/status/{name}/{value}"


def other_info_path(name: str, value: str = "total") -> str:
    """One of the other counters of a core."""
    return f"stats/other_info/{name}/{value}"


def device_memory_path(category: str, value: str = "total") -> str:
    """Device memory of a core in a category; `total` is what is allocated now."""
    return f"stats/memory_usage/device_mem/{category}/{value}"


def host_memory_path(category: str, value: str = "total") -> str:
    """Host memory of a device in a category; `total` is what is allocated now."""
    return f"stats/memory_usage/host_mem/{category}/{value}"


def core_memory_path(location: str, value: str = "total") -> str:
    """All memory of a core in `host_mem` or `device_mem`."""
    return f"stats/memory_usage/{location}/{value}"


DEVICE_FILES: tuple[File, ...] = (
    File(CONNECTED_DEVICES, TEXT, _PRIVATE_MODE),
    File(CORE_COUNT, BARE, _PRIVATE_MODE),
    File("reset", COUNT, _RESET_MODE),
    File(DEVICE_NUMBER, TEXT, _PUBLIC_MODE),
    File("uevent", BARE),
    File("info/notify_delay", COUNT),
    File(SERIAL_NUMBER, TEXT, generation=2),
    File(ARCH_TYPE, TEXT),
    File(INSTANCE_TYPE, TEXT),
    File(DEVICE_NAME, TEXT),
    *(File(f"stats/hardware/{name}", COUNT, generation=2) for name in ECC if "uncorrected" in name),
    *(
        File(f"stats/hardware/{name}", COUNT, since=LIVE_COUNTERS, generation=3)
        for name in ECC
        if "uncorrected" not in name
    ),
    File(UNHEALTHY_COMPONENTS, TEXT, since=LIVE_COUNTERS, generation=3),
    File(POWER_UTILIZATION, TEXT, since=POWER_AND_TIME),
    *(File(host_memory_path(category, value), COUNT) for category in HOST_MEMORY for value in MEMORY_VALUES),
)

CORE_FILES: tuple[File, ...] = (
    File(ARCH_TYPE, TEXT),
    *(File(status_path(name, value), COUNT) for name in STATUS for value in COUNTER_VALUES),
    *(
        File(core_memory_path(location, value), COUNT)
        for location in ("host_mem", "device_mem")
        for value in MEMORY_VALUES
    ),
    *(File(device_memory_path(category, value), COUNT) for category in DEVICE_MEMORY for value in MEMORY_VALUES),
    *(
        File(other_info_path(name, value), COUNT, since=POWER_AND_TIME if name == TIME_IN_USE else (0,))
        for name in OTHER_INFO
        for value in COUNTER_VALUES
    ),
    File("stats/tensor_engine/pe_cntrs", TEXT, generation=2),
)

# Of the host as a whole, relative to the root of sysfs.
CLASS_FILES: tuple[File, ...] = (
    *(File(f"class/neuron_device/node_id_{nodes}", COUNT, _PUBLIC_MODE) for nodes in (2, 4)),
    *(File(f"class/neuron_device/server_id_{nodes}", SERIAL, _PUBLIC_MODE) for nodes in (2, 4)),
    File("class/neuron_device/ultraserver_mode", TEXT, _PUBLIC_MODE),
    File("module/neuron/version", TEXT, _PUBLIC_MODE),
)


def files_of(table: tuple[File, ...], driver_version: tuple[int, ...], generation: int) -> tuple[File, ...]:
    """The rows that a driver of this version has on this hardware, with the modes it gives them."""
    present = (file for file in table if driver_version >= file.since and generation >= file.generation)
    if driver_version < OPENED_TO_USERS:
        return tuple(present)
    return tuple(replace(file, mode=_PUBLIC_MODE) if file.mode == _PRIVATE_MODE else file for file in present)


def parsed_version(text: str | None) -> tuple[int, ...] | None:
    """The numbers of a driver version such as "2.30.2.0"; None when it is none."""
    parts = (text or "").strip().split(".")
    if not 2 <= len(parts) <= 6 or not all(part.isascii() and part.isdigit() and len(part) < 10 for part in parts):
        return None
    return tuple(map(int, parts))
