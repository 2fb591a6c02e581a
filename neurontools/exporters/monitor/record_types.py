"""The types of a neuron-monitor record, the names of its metric groups, and its JSON Schema.

The JSON Schema shows the class names and docstrings of these types. The module omits `from __future__ import
annotations`, which would hide NotRequired from `__required_keys__`.
"""

import types
from typing import Any, NotRequired, TypedDict, Union, get_args, get_origin, get_type_hints, is_typeddict

NEURONCORE_COUNTERS = "neuroncore_counters"
MEMORY_USED = "memory_used"
RUNTIME_VCPU_USAGE = "neuron_runtime_vcpu_usage"
EXECUTION_STATS = "execution_stats"
RUNTIME_GROUPS = (NEURONCORE_COUNTERS, MEMORY_USED, RUNTIME_VCPU_USAGE, EXECUTION_STATS)

VCPU_USAGE = "vcpu_usage"
MEMORY_INFO = "memory_info"
HW_COUNTERS = "neuron_hw_counters"
SYSTEM_GROUPS = (VCPU_USAGE, MEMORY_INFO, HW_COUNTERS)

DEFAULT_PERIOD_SECONDS = 5.0
SHORTEST_PERIOD_SECONDS = 0.01
LONGEST_PERIOD_SECONDS = 86_400.0


Percentiles = dict[str, float]
"""Percentiles of latency by name (p0, p1, p100, p25, p50, p75, p99), seconds."""


CoreCounters = dict[str, float | dict[str, dict[str, float]]]
"""Values of one core: neuroncore_utilization (percent), flops and effective_flops (integers per second).

A logical core that consists of two physical cores also has an object under the name of its version ("v3d"). This object
has the neuroncore_utilization of each physical core, under names such as "nc_v3.0".
"""


class NeuronCoreCounters(TypedDict):
    """The metric group neuroncore_counters. Its keys are global logical core indices.

    With the setting neuroncores_in_use = held, the group has only the cores that the process holds. With the default,
    devices, it has all cores of the process's devices.
    """

    period: float
    neuroncores_in_use: dict[str, CoreCounters]
    error: str


class ErrorSummary(TypedDict):
    """Number of execution errors within the period, by kind."""

    generic: int
    numerical: int
    transient: int
    model: int
    runtime: int
    hardware: int


class ExecutionSummary(TypedDict):
    """Number of finished executions within the period, by outcome."""

    completed: int
    completed_with_err: int
    completed_with_num_err: int
    timed_out: int
    incorrect_input: int
    failed_to_queue: int


class LatencyStats(TypedDict):
    """Latencies of the executions within the period; null if there were no executions."""

    total_latency: Percentiles | None
    device_latency: Percentiles | None


class ExecutionStats(TypedDict):
    """The metric group execution_stats. If executions are unknown, `error` has the reason and the counts are 0."""

    period: float
    error_summary: ErrorSummary
    execution_summary: ExecutionSummary
    latency_stats: LatencyStats
    error: str


class HostBreakdown(TypedDict):
    """Host memory by category, bytes."""

    application_memory: int
    constants: int
    dma_buffers: int
    tensors: int


class CoreBreakdown(TypedDict):
    """Device memory of a core by category, bytes."""

    constants: int
    model_code: int
    model_shared_scratchpad: int
    runtime_memory: int
    tensors: int


class SubgraphDeviceBreakdown(TypedDict):
    """Device memory of a subgraph by category, bytes."""

    constants: int
    model_code: int
    runtime_memory: int
    tensors: int


class RuntimeBreakdown(TypedDict):
    """Memory of a process on the host and on each core, by category. The keys of cores are global logical indices."""

    host: HostBreakdown
    neuroncore_memory_usage: dict[str, CoreBreakdown]


class RuntimeUsedBytes(TypedDict):
    """Memory of a process, bytes. The totals of host and device are the sums of the breakdown."""

    host: int
    neuron_device: int
    usage_breakdown: RuntimeBreakdown


class SubgraphBreakdown(TypedDict):
    """Memory of a subgraph on the host and on the device, by category."""

    host: HostBreakdown
    neuron_device: SubgraphDeviceBreakdown


class SubgraphUsedBytes(TypedDict):
    """Memory of a subgraph, bytes. The totals of host and device are the sums of the breakdown."""

    host: int
    neuron_device: int
    usage_breakdown: SubgraphBreakdown


class SubgraphEntry(TypedDict):
    """A subgraph: the part of a model on one core. The core index is relative to the device."""

    memory_used_bytes: SubgraphUsedBytes
    neuroncore_index: int
    neuron_device_index: int


class LoadedModelEntry(TypedDict):
    """A loaded model, with its subgraphs by name, such as "sg_00"."""

    name: str
    uuid: str
    model_id: int
    is_running: bool
    subgraphs: dict[str, SubgraphEntry]


class MemoryUsed(TypedDict):
    """The metric group memory_used: the memory of a process and its loaded models."""

    period: float
    neuron_runtime_used_bytes: RuntimeUsedBytes
    loaded_models: list[LoadedModelEntry]
    error: str


class UserSystem(TypedDict):
    """Shares of all vCPU time of the host that a process used, percent."""

    user: float
    system: float


class RuntimeVcpuUsage(TypedDict):
    """The metric group neuron_runtime_vcpu_usage: the vCPU usage of a process."""

    period: float
    vcpu_usage: UserSystem
    error: str


class RuntimeReport(TypedDict, total=False):
    """The metric groups of a process that were due at the time of the record."""

    execution_stats: ExecutionStats
    memory_used: MemoryUsed
    neuron_runtime_vcpu_usage: RuntimeVcpuUsage
    neuroncore_counters: NeuronCoreCounters


class RuntimeData(TypedDict):
    """A process that uses NeuronCores."""

    pid: int
    address: str
    neuron_runtime_tag: str
    error: str
    report: RuntimeReport


class MemoryInfo(TypedDict):
    """The metric group memory_info: memory and swap of the host, bytes."""

    period: float
    memory_total_bytes: int
    memory_used_bytes: int
    swap_total_bytes: int
    swap_used_bytes: int
    error: str


class DeviceEcc(TypedDict):
    """Number of ECC events of one device within the period; in the first record, since the driver was loaded.

    A count is 0 if the driver does not count such events, for example corrected events before Trainium2.
    """

    neuron_device_index: int
    mem_ecc_corrected: int
    mem_ecc_uncorrected: int
    sram_ecc_uncorrected: int
    sram_ecc_corrected: int


class HwCounters(TypedDict):
    """The metric group neuron_hw_counters: the ECC events of all devices."""

    period: float
    neuron_devices: list[DeviceEcc]
    error: str


class CpuShares(TypedDict):
    """Shares of vCPU time by mode, percent."""

    user: float
    nice: float
    system: float
    idle: float
    io_wait: float
    irq: float
    soft_irq: float


class VcpuUsageGroup(TypedDict):
    """The metric group vcpu_usage: the vCPU usage of the host. The keys of usage_data are vCPU indices."""

    period: float
    average_usage: CpuShares
    usage_data: dict[str, CpuShares]
    context_switch_count: int
    error: str


class SystemData(TypedDict, total=False):
    """The metric groups of the host that were due at the time of the record."""

    memory_info: MemoryInfo
    neuron_hw_counters: HwCounters
    vcpu_usage: VcpuUsageGroup


class InstanceInfo(TypedDict):
    """The EC2 instance. An unknown value is ""."""

    instance_name: str
    instance_id: str
    instance_type: str
    instance_availability_zone: str
    instance_availability_zone_id: str
    instance_region: str
    ami_id: str
    subnet_id: str
    ultraserver_id: NotRequired[str]
    error: str


class NeuronHardwareInfo(TypedDict):
    """The Neuron devices of the host. Numbers of cores are numbers of logical cores."""

    neuron_device_type: str
    neuron_device_version: str
    neuroncore_version: str
    neuron_device_count: int
    neuron_device_memory_size: int
    neuroncore_per_device_count: int
    logical_neuroncore_config: int
    error: str


class K8sUser(TypedDict):
    """The pod to which a core or a device is assigned, with its containers."""

    pod_name: str
    namespace: str
    container_name: list[str]


class NeuronK8sInfo(TypedDict):
    """The metric group neuron_k8s_info: the pods to which logical cores and devices are assigned."""

    period: float
    neuroncores_k8s_info: dict[str, K8sUser]
    neurondevices_k8s_info: dict[str, K8sUser]
    error: str


class Record(TypedDict):
    """One record, which is one line of the output of neuron-monitor."""

    neuron_runtime_data: list[RuntimeData]
    system_data: SystemData
    instance_info: InstanceInfo
    neuron_hardware_info: NeuronHardwareInfo
    neuron_k8s_info: NotRequired[NeuronK8sInfo]


_SCALARS: dict[object, dict[str, Any]] = {
    str: {"type": "string"},
    int: {"type": "integer"},
    float: {"type": "number"},
    bool: {"type": "boolean"},
    type(None): {"type": "null"},
}


def record_schema() -> dict[str, Any]:
    """Returns the JSON Schema (draft 2020-12) of a record, which is one line of neuron-monitor."""
    definitions: dict[str, Any] = {}
    reference = _type_schema(Record, definitions)
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "neuron-monitor record",
        **reference,
        "$defs": dict(sorted(definitions.items())),
    }


def _type_schema(hint: Any, definitions: dict[str, Any]) -> dict[str, Any]:
    if hint in _SCALARS:
        return _SCALARS[hint]
    origin, arguments = get_origin(hint), get_args(hint)
    if origin is list:
        return {"type": "array", "items": _type_schema(arguments[0], definitions)}
    if origin is dict:
        return {"type": "object", "additionalProperties": _type_schema(arguments[1], definitions)}
    if origin in (Union, types.UnionType):
        return {"anyOf": [_type_schema(option, definitions) for option in arguments]}
    if not is_typeddict(hint):
        raise TypeError(f"no schema for {hint!r}")
    if hint.__name__ not in definitions:
        definitions[hint.__name__] = {}  # ends the recursion for a type that refers to itself
        definitions[hint.__name__] = _object_schema(hint, definitions)
    return {"$ref": f"#/$defs/{hint.__name__}"}


def _object_schema(hint: Any, definitions: dict[str, Any]) -> dict[str, Any]:
    from inspect import getdoc  # inspect is slow to import, and only --json-schema needs it

    properties = {name: _type_schema(part, definitions) for name, part in get_type_hints(hint).items()}
    return {
        "type": "object",
        "description": " ".join((getdoc(hint) or "").split()),
        "properties": properties,
        "required": [name for name in properties if name in hint.__required_keys__],
    }
