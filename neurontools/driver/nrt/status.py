"""The Neuron runtime's status codes and the words in which it refuses cores.

Source: nrt_status.h and the runtime's log texts as published in the Neuron SDK's documentation.
"""

from __future__ import annotations

from enum import IntEnum


class NrtStatus(IntEnum):
    """What a call of the Neuron runtime returns."""

    SUCCESS = 0
    FAILURE = 1
    INVALID = 2
    INVALID_HANDLE = 3
    RESOURCE = 4
    TIMEOUT = 5
    HW_ERROR = 6
    QUEUE_FULL = 7
    LOAD_NOT_ENOUGH_NC = 9
    UNSUPPORTED_NEFF_VERSION = 10
    FAIL_HOST_MEM_ALLOC = 11
    UNINITIALIZED = 13
    CLOSED = 14
    QUEUE_EMPTY = 15
    EXEC_UNIT_UNRECOVERABLE = 101
    EXEC_BAD_INPUT = 1002
    EXEC_COMPLETED_WITH_NUM_ERR = 1003
    EXEC_COMPLETED_WITH_ERR = 1004
    EXEC_NC_BUSY = 1005
    EXEC_OOB = 1006
    COLL_PENDING = 1100
    EXEC_HW_ERR_COLLECTIVES = 1200
    EXEC_HW_ERR_HBM_UE = 1201
    EXEC_HW_ERR_NC_UE = 1202
    EXEC_HW_ERR_DMA_ABORT = 1203
    EXEC_SW_NQ_OVERFLOW = 1204
    EXEC_HW_ERR_REPAIRABLE_HBM_UE = 1205
    NETWORK_PROXY_FAILURE = 1206


def cores_not_available(first: int, last: int, available: int, logical_neuroncore_config: int) -> str:
    """The runtime's words when a range of cores is held by others; the newer ones where cores are logical."""
    if logical_neuroncore_config == 1:
        return f"NeuronCore(s) not available - Requested:nc{first}-nc{last} Available:{available}"
    return (
        f"Logical Neuron Core(s) not available - Requested:lnc{first}-lnc{last} Available:{available} "
        f"Logical Core size:{logical_neuroncore_config} (cores busy, ret=-16)"
    )


def core_count_not_available(count: int, available: int, logical_neuroncore_config: int) -> str:
    """The runtime's words when so many contiguous cores are not free."""
    if logical_neuroncore_config == 1:
        return f"NeuronCore(s) not available - Requested:{count} Available:{available}"
    return (
        f"Logical Neuron Core(s) not available - Requested:{count} Available:{available} "
        f"Logical Core size:{logical_neuroncore_config} (cores busy, ret=-16)"
    )


CORES_NOT_CONTIGUOUS = "Neuron cores are not contiguous"
