"""The original's format as strict pydantic models, written from its description and not from our own types."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, model_validator

Count = Annotated[int, Field(strict=True, ge=0)]
Number = Annotated[float, Field(strict=True, ge=0, allow_inf_nan=False)]
Percent = Annotated[float, Field(strict=True, ge=0, le=100.0000001, allow_inf_nan=False)]


def keys(names: str) -> AfterValidator:
    """Of an object that has exactly these keys."""

    def check(value: dict[str, Any]) -> dict[str, Any]:
        assert value.keys() == set(names.split())
        return value

    return AfterValidator(check)


Utilization = Annotated[dict[str, Percent], keys("neuroncore_utilization")]
ErrorSummary = Annotated[dict[str, Count], keys("generic numerical transient model runtime hardware")]
ExecutionSummary = Annotated[
    dict[str, Count],
    keys("completed completed_with_err completed_with_num_err timed_out incorrect_input failed_to_queue"),
]
Percentiles = Annotated[dict[str, Number], keys("p0 p1 p100 p25 p50 p75 p99")]
LatencyStats = Annotated[dict[str, Percentiles | None], keys("total_latency device_latency")]
HostMemory = Annotated[dict[str, Count], keys("application_memory constants dma_buffers tensors")]
CoreMemory = Annotated[dict[str, Count], keys("constants model_code model_shared_scratchpad runtime_memory tensors")]
SubgraphMemory = Annotated[dict[str, Count], keys("constants model_code runtime_memory tensors")]
UserSystem = Annotated[dict[str, Number], keys("user system")]
Ecc = Annotated[
    dict[str, Count],
    keys("neuron_device_index mem_ecc_corrected mem_ecc_uncorrected sram_ecc_uncorrected sram_ecc_corrected"),
]
Shares = Annotated[dict[str, Percent], keys("user nice system idle io_wait irq soft_irq")]


class Exact(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True)


class Core(Exact):
    neuroncore_utilization: Percent
    flops: Count
    effective_flops: Count
    v3d: dict[Annotated[str, Field(pattern=r"^nc_v3\.\d+$")], Utilization] | None = None
    v4d: dict[Annotated[str, Field(pattern=r"^nc_v4\.\d+$")], Utilization] | None = None


class Group(Exact):
    period: Number
    error: str


class NeuroncoreCounters(Group):
    neuroncores_in_use: dict[str, Core]


class ExecutionStats(Group):
    error_summary: ErrorSummary
    execution_summary: ExecutionSummary
    latency_stats: LatencyStats


class RuntimeBreakdown(Exact):
    host: HostMemory
    neuroncore_memory_usage: dict[str, CoreMemory]


class RuntimeUsed(Exact):
    host: Count
    neuron_device: Count
    usage_breakdown: RuntimeBreakdown

    @model_validator(mode="after")
    def sums(self) -> RuntimeUsed:
        assert self.host == sum(self.usage_breakdown.host.values())
        cores = self.usage_breakdown.neuroncore_memory_usage.values()
        assert self.neuron_device == sum(sum(core.values()) for core in cores)
        return self


class SubgraphBreakdown(Exact):
    host: HostMemory
    neuron_device: SubgraphMemory


class SubgraphUsed(Exact):
    host: Count
    neuron_device: Count
    usage_breakdown: SubgraphBreakdown


class Subgraph(Exact):
    memory_used_bytes: SubgraphUsed
    neuroncore_index: Count
    neuron_device_index: Count


class Model(Exact):
    name: str
    uuid: Annotated[str, Field(pattern=r"^[0-9a-f]{32}$")]
    model_id: Count
    is_running: bool
    subgraphs: dict[Annotated[str, Field(pattern=r"^sg_\d\d$")], Subgraph]


class MemoryUsed(Group):
    neuron_runtime_used_bytes: RuntimeUsed
    loaded_models: list[Model]


class RuntimeVcpu(Group):
    vcpu_usage: UserSystem


class Report(Exact):
    execution_stats: ExecutionStats | None = None
    memory_used: MemoryUsed | None = None
    neuron_runtime_vcpu_usage: RuntimeVcpu | None = None
    neuroncore_counters: NeuroncoreCounters | None = None


class Runtime(Exact):
    pid: Count
    address: Literal[""]
    neuron_runtime_tag: str
    error: str
    report: Report


class MemoryInfo(Group):
    memory_total_bytes: Count
    memory_used_bytes: Count
    swap_total_bytes: Count
    swap_used_bytes: Count


class HwCounters(Group):
    neuron_devices: list[Ecc]


class VcpuUsage(Group):
    average_usage: Shares
    usage_data: dict[str, Shares]
    context_switch_count: Count


class System(Exact):
    memory_info: MemoryInfo | None = None
    neuron_hw_counters: HwCounters | None = None
    vcpu_usage: VcpuUsage | None = None


class InstanceInfo(Exact):
    instance_name: str
    instance_id: str
    instance_type: str
    instance_availability_zone: str
    instance_availability_zone_id: str
    instance_region: str
    ami_id: str
    subnet_id: str
    ultraserver_id: str | None = None
    error: str


class HardwareInfo(Exact):
    neuron_device_type: str
    neuron_device_version: str
    neuroncore_version: str
    neuron_device_count: Count
    neuron_device_memory_size: Count
    neuroncore_per_device_count: Count
    logical_neuroncore_config: Count
    error: str


class K8sUser(Exact):
    pod_name: str
    namespace: str
    container_name: list[str]


class K8sInfo(Group):
    neuroncores_k8s_info: dict[str, K8sUser]
    neurondevices_k8s_info: dict[str, K8sUser]


class Record(Exact):
    neuron_runtime_data: list[Runtime]
    system_data: System
    instance_info: InstanceInfo
    neuron_hardware_info: HardwareInfo
    neuron_k8s_info: K8sInfo | None = None
