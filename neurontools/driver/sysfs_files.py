"""The files of the driver's sysfs tree as a table, and functions that read them."""

from __future__ import annotations

import errno
import os
import stat
from dataclasses import dataclass, replace

TYPE_CHECKING = False  # importing typing.TYPE_CHECKING would cost several milliseconds
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping


_METRIC_MODE = 0o644
_FIRST_METRIC_MODE = 0o600
_PUBLIC_MODE = 0o444
_PRIVATE_MODE = 0o400
_RESET_MODE = 0o600

# Driver versions that changed the sysfs tree.
METRICS_SINCE = (2, 7)  # first driver version with counters; earlier versions have only files such as core_count
CURRENT_NAMES_SINCE = (2, 8)  # this driver version adds info/ and peak, and renames infer_* to execute_*
MEMORY_CATEGORIES = (2, 10)
METRICS_OPENED_TO_USERS = (2, 15)
SERIAL_NUMBERS_SINCE = (2, 15)
OPENED_TO_USERS = (2, 28)  # first driver version in which all users may read core_count and connected_devices
LIVE_COUNTERS_SINCE = (2, 30)  # first driver version whose runtime counters change before a process ends
POWER_AND_TIME = (2, 21)


@dataclass(frozen=True, slots=True)
class SysfsFile:
    """A file of the sysfs tree. `generation` is the first hardware generation with it: 1 (Inferentia) to 4 (Trainium3).

    Driver versions have the file from `since` on and before `until`; `until` None means no end.
    """

    path: str
    mode: int = _METRIC_MODE
    since: tuple[int, ...] = METRICS_SINCE
    generation: int = 1
    until: tuple[int, ...] | None = None


MEMORY_VALUES = ("total", "present", "peak")
COUNTER_VALUES = ("total", "present")

# Directories in stats/memory_usage/device_mem of a core. DeviceMemory has a field `<name>_bytes` for each.
DEVICE_MEMORY_CATEGORIES = (
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
# Directories in stats/memory_usage/host_mem of a device. HostMemory has a field `<name>_bytes` for each.
HOST_MEMORY_CATEGORIES = (
    "dma_buffers",
    "tensors",
    "constants",
    "application_memory",
    "driver_memory",
    "notifications",
    "dma_rings",
    "uncategorized",
)
# Maps directories in stats/status of a core to the first driver version that has them; None: as early as the others.
# StatusCounters has a field `<name>_total` for each.
STATUS_COUNTERS: dict[str, tuple[int, int] | None] = {
    "success": None,
    "failure": None,
    "timeout": None,
    "exec_bad_input": None,
    "hw_error": None,
    "execute_completed_with_error": None,
    "execute_completed_with_num_error": None,
    "generic_error": None,
    "resource_error": None,
    "resource_nc_error": None,
    "execute_failed_to_queue": None,
    "invalid_error": None,
    "unsupported_neff_version": None,
    "oob_error": (2, 16),
    "hw_collectives_error": (2, 19),
    "hw_hbm_ue_error": (2, 19),
    "hw_nc_ue_error": (2, 19),
    "hw_dma_abort_error": (2, 19),
    "execute_sw_nq_overflow": (2, 20),
    "execute_sw_semaphore_error": (2, 21),
    "execute_sw_event_error": (2, 21),
    "execute_sw_psum_collision": (2, 21),
    "execute_sw_sequencer_fatal": (2, 21),
    "hw_repairable_hbm_ue_error": (2, 23),
}
# Directories in stats/other_info of a core. FLOP_COUNT and TIME_IN_USE use all 64 bits: 2^63 FLOP take a core a day.
INFERENCE_COUNT, FLOP_COUNT, TIME_IN_USE = "inference_count", "flop_count", "nc_time_in_use"
RESET_REQUESTS, RESET_FAILURES = "reset_req_count", "reset_fail_count"
OTHER_INFO = ("model_load_count", RESET_REQUESTS, RESET_FAILURES, INFERENCE_COUNT, FLOP_COUNT, TIME_IN_USE)
_OTHER_INFO = "stats/other_info"

# Maps files in stats/hardware of a device to fields of EccCounters.
ECC_COUNTERS = {
    "sram_ecc_uncorrected": "sram_uncorrected_total",
    "mem_ecc_uncorrected": "mem_uncorrected_total",
    "mem_ecc_repairable_uncorrected": "mem_repairable_uncorrected_total",
    "sram_ecc_corrected": "sram_corrected_total",
    "mem_ecc_corrected": "mem_corrected_total",
}

CONNECTED_DEVICES, CORE_COUNT, DEVICE_NUMBER = "connected_devices", "core_count", "dev"
SERIAL_NUMBER = "info/serial_number"
ARCH_TYPE = "info/architecture/arch_type"
FIRST_ARCH_TYPE = "arch_type"  # path of ARCH_TYPE in driver 2.7, where the value has no prefix "ND"
INSTANCE_TYPE = "info/architecture/instance_type"
DEVICE_NAME = "info/architecture/device_name"
POWER_UTILIZATION = "stats/power/utilization"
UNHEALTHY_COMPONENTS = "stats/hardware/health_status/unhealthy_components"


# Maps a counter to the first driver version that has it. Counters as old as their directory are not in the table.
_MEMORY_SINCE = {
    "driver_memory": (2, 17),
    "collectives": (2, 17),
    "nonshared_scratchpad": (2, 17),
    "notifications": (2, 17),
    "uncategorized": (2, 17),
    "dma_rings": (2, 18),
}
_OTHER_INFO_SINCE = {RESET_FAILURES: CURRENT_NAMES_SINCE, FLOP_COUNT: (2, 12), TIME_IN_USE: POWER_AND_TIME}
_ECC_SINCE = {"mem_ecc_repairable_uncorrected": (2, 23)}
_ECC_FIRST = (2, 14)


def tells_health(path: str) -> bool:
    """Returns whether the health of a device depends on a file of the device or of its cores.

    `path` is the file's path in the newest known version.
    """
    return path.startswith(("stats/hardware/", "stats/status/", f"{_OTHER_INFO}/{RESET_FAILURES}/"))


def status_path(name: str, value: str = "total") -> str:
    return f"stats/status/{name}/{value}"


def other_info_path(name: str, value: str = "total") -> str:
    return f"{_OTHER_INFO}/{name}/{value}"


def device_memory_path(category: str, value: str = "total") -> str:
    """Returns the path of a file about a core's device memory. The file "total" has the current bytes."""
    return f"stats/memory_usage/device_mem/{category}/{value}"


def host_memory_path(category: str, value: str = "total") -> str:
    """Returns the path of a file about a device's host memory in a category; the file `total` has the current size."""
    return f"stats/memory_usage/host_mem/{category}/{value}"


def core_memory_path(location: str, value: str = "total") -> str:
    """Returns the path of a file about the memory of a core in all categories; `location` is host_mem or device_mem."""
    return f"stats/memory_usage/{location}/{value}"


# Maps a path to its earlier path and the driver version that moved it. Memory had no categories before 2.10.
_EARLIER: dict[str, tuple[str, tuple[int, ...]]] = {
    status_path("execute_completed_with_error"): (status_path("infer_completed_with_error"), CURRENT_NAMES_SINCE),
    status_path("execute_completed_with_num_error"): (
        status_path("infer_completed_with_num_error"),
        CURRENT_NAMES_SINCE,
    ),
    status_path("execute_failed_to_queue"): (status_path("infer_failed_to_queue"), CURRENT_NAMES_SINCE),
    other_info_path(RESET_REQUESTS): (other_info_path("reset_count"), CURRENT_NAMES_SINCE),
    device_memory_path("uncategorized"): (core_memory_path("device_mem"), MEMORY_CATEGORIES),
    ARCH_TYPE: (FIRST_ARCH_TYPE, CURRENT_NAMES_SINCE),
}


def _counters(
    path: Callable[[str, str], str],
    names: Iterable[str],
    since: Mapping[str, tuple[int, ...] | None],
    first: tuple[int, ...] = METRICS_SINCE,
    values: tuple[str, ...] = COUNTER_VALUES,
) -> Iterator[SysfsFile]:
    for name in names:
        if path(name, "total") in _EARLIER and since.get(name) is None:
            earlier, renamed_in = _EARLIER[path(name, "total")]
            yield from (SysfsFile(path(name, value), since=renamed_in) for value in values)
            earlier_directory = earlier.rpartition("/")[0]
            yield from (SysfsFile(f"{earlier_directory}/{value}", until=renamed_in) for value in values)
        else:
            begins = since.get(name) or first
            for value in values:
                yield SysfsFile(
                    path(name, value), since=max(begins, CURRENT_NAMES_SINCE) if value == "peak" else begins
                )


DEVICE_FILES: tuple[SysfsFile, ...] = (
    SysfsFile(CONNECTED_DEVICES, _PRIVATE_MODE, since=(0,)),
    SysfsFile(CORE_COUNT, _PRIVATE_MODE, since=(0,)),
    SysfsFile("reset", _RESET_MODE, since=(0,)),
    SysfsFile(DEVICE_NUMBER, _PUBLIC_MODE, since=(0,)),
    SysfsFile("uevent", since=(0,)),
    SysfsFile("info/notify_delay", since=(2, 9)),
    SysfsFile(SERIAL_NUMBER, since=SERIAL_NUMBERS_SINCE, generation=2),
    SysfsFile(ARCH_TYPE, since=CURRENT_NAMES_SINCE),
    SysfsFile(FIRST_ARCH_TYPE, until=CURRENT_NAMES_SINCE),
    SysfsFile(INSTANCE_TYPE, since=CURRENT_NAMES_SINCE),
    SysfsFile(DEVICE_NAME, since=CURRENT_NAMES_SINCE),
    *(
        SysfsFile(f"stats/hardware/{name}", since=_ECC_SINCE.get(name, _ECC_FIRST), generation=2)
        for name in ECC_COUNTERS
        if "uncorrected" in name
    ),
    *(
        SysfsFile(f"stats/hardware/{name}", since=LIVE_COUNTERS_SINCE, generation=3)
        for name in ECC_COUNTERS
        if "uncorrected" not in name
    ),
    SysfsFile(UNHEALTHY_COMPONENTS, since=LIVE_COUNTERS_SINCE, generation=3),
    SysfsFile(POWER_UTILIZATION, since=POWER_AND_TIME),
    *_counters(host_memory_path, HOST_MEMORY_CATEGORIES, _MEMORY_SINCE, MEMORY_CATEGORIES, MEMORY_VALUES),
)

CORE_FILES: tuple[SysfsFile, ...] = (
    SysfsFile(ARCH_TYPE, since=CURRENT_NAMES_SINCE),
    *_counters(status_path, STATUS_COUNTERS, STATUS_COUNTERS),
    *_counters(core_memory_path, ("host_mem", "device_mem"), {}, values=MEMORY_VALUES),
    *_counters(device_memory_path, DEVICE_MEMORY_CATEGORIES, _MEMORY_SINCE, MEMORY_CATEGORIES, MEMORY_VALUES),
    *_counters(other_info_path, OTHER_INFO, _OTHER_INFO_SINCE),
    SysfsFile("stats/tensor_engine/pe_cntrs", since=(2, 23), generation=2),
)


def files_for_driver(
    table: tuple[SysfsFile, ...], driver_version: tuple[int, ...], generation: int
) -> tuple[SysfsFile, ...]:
    """Returns the files that a driver version has on a hardware generation, with their modes."""

    def mode_of(file: SysfsFile) -> int:
        if file.mode == _PRIVATE_MODE and driver_version >= OPENED_TO_USERS:
            return _PUBLIC_MODE
        is_metric = file.mode == _METRIC_MODE and file.since >= METRICS_SINCE
        return _FIRST_METRIC_MODE if is_metric and driver_version < METRICS_OPENED_TO_USERS else file.mode

    return tuple(
        replace(file, mode=mode_of(file))
        for file in table
        if generation >= file.generation
        and driver_version >= file.since
        and (file.until is None or driver_version < file.until)
    )


def path_in_version(path: str, driver_version: tuple[int, ...]) -> str:
    """Returns the path of a file in a driver version; `path` is the file's path in the newest known version."""
    earlier = _EARLIER.get(path)
    return path if earlier is None or driver_version >= earlier[1] else earlier[0]


def parse_driver_version(text: str | None) -> tuple[int, ...] | None:
    """Parses a driver version such as "2.30.2.0". None if invalid."""
    parts = (text or "").strip().split(".")
    if not 2 <= len(parts) <= 6 or not all(part.isascii() and part.isdigit() and len(part) < 10 for part in parts):
        return None
    return tuple(map(int, parts))


MAX_BYTES = 4096
MAX_UINT64 = 2**64 - 1
MAX_COUNT = 2**48 - 1
"""The highest plausible count of events or number of bytes. The sum of all counters of a host then fits into 64 bits.

A higher number is garbage, or it wrapped: a write reset the counter, and later memory was freed.
"""

# O_NOFOLLOW: a link could lead to a device, and opening a device would make this process its owner.
# O_NONBLOCK: opening a pipe must not block.
OPEN_FLAGS = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOCTTY


def open_file(path: str) -> int:
    """Opens a regular file and returns the descriptor. Raises OSError, with ENODEV for other file types."""
    descriptor = os.open(path, OPEN_FLAGS)
    try:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            raise OSError(errno.ENODEV, "not a regular file", path)
    except OSError:
        os.close(descriptor)
        raise
    return descriptor


def read_bytes(path: str, limit_bytes: int = MAX_BYTES) -> bytes:
    """Reads at most `limit_bytes` with a single read. Raises OSError if that fails."""
    descriptor = open_file(path)
    try:
        return os.read(descriptor, limit_bytes)
    finally:
        os.close(descriptor)


def read_text(path: str, limit_bytes: int = MAX_BYTES) -> str | None:
    """Reads a file and strips white space. None if unreadable."""
    try:
        return read_bytes(path, limit_bytes).decode("utf-8", "replace").strip()
    except (OSError, ValueError):  # ValueError: a NUL in the path
        return None


def read_whole_file(path: str, limit_bytes: int) -> bytes:
    """Reads a file to its end, at most `limit_bytes`; files of /proc may need several reads. Raises OSError."""
    descriptor = open_file(path)
    try:
        pieces = []
        left = limit_bytes
        while left > 0 and (piece := os.read(descriptor, left)):
            pieces.append(piece)
            left -= len(piece)
        return b"".join(pieces)
    finally:
        os.close(descriptor)


def parse_count(raw: bytes) -> int | None:
    """Parses a counter, with or without newline. None if invalid."""
    digits = raw[:-1] if raw.endswith(b"\n") else raw
    if not digits.isdigit() or len(digits) > 20:
        return None
    value = int(digits)
    return value if value <= MAX_UINT64 else None
