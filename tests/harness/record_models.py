"""The original's format as strict pydantic models, written from its description and not from our own types."""

from __future__ import annotations

from types import GenericAlias
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, create_model, model_validator

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


def exact(check: Any = None, **fields: Any) -> type[BaseModel]:
    """A model with exactly these fields, of which `optional` ones may be missing; `check` looks at all of them."""
    wanted: dict[str, Any] = {name: kind if isinstance(kind, tuple) else (kind, ...) for name, kind in fields.items()}
    validators: dict[str, Any] = {} if check is None else {"check": model_validator(mode="after")(check)}
    config = ConfigDict(extra="forbid", strict=True, protected_namespaces=())  # pydantic 2.8 and 2.9 protect "model_"
    return create_model("Exact", __config__=config, __validators__=validators, **wanted)


def optional(kind: Any) -> tuple[Any, None]:
    return kind | None, None


def many(kind: Any) -> Any:
    return GenericAlias(list, (kind,))


def named(kind: Any, pattern: str = "") -> Any:
    """An object whose values are of this kind, and whose keys match the pattern."""
    return GenericAlias(dict, (Annotated[str, Field(pattern=pattern)], kind))


def group(**fields: Any) -> type[BaseModel]:
    """A group of metrics, which has a period and an error."""
    return exact(period=Number, error=str, **fields)


def sums(used: Any) -> Any:
    """Checks that the memory of a runtime is what its parts add up to."""
    assert used.host == sum(used.usage_breakdown.host.values())
    cores = used.usage_breakdown.neuroncore_memory_usage.values()
    assert used.neuron_device == sum(sum(core.values()) for core in cores)
    return used


Core = exact(
    neuroncore_utilization=Percent,
    flops=Count,
    effective_flops=Count,
    v3d=optional(named(Utilization, r"^nc_v3\.\d+$")),
    v4d=optional(named(Utilization, r"^nc_v4\.\d+$")),
)
RuntimeUsed = exact(
    sums,
    host=Count,
    neuron_device=Count,
    usage_breakdown=exact(host=HostMemory, neuroncore_memory_usage=named(CoreMemory)),
)
Subgraph = exact(
    memory_used_bytes=exact(
        host=Count, neuron_device=Count, usage_breakdown=exact(host=HostMemory, neuron_device=SubgraphMemory)
    ),
    neuroncore_index=Count,
    neuron_device_index=Count,
)
Model = exact(
    name=str,
    uuid=Annotated[str, Field(pattern=r"^[0-9a-f]{32}$")],
    model_id=Count,
    is_running=bool,
    subgraphs=named(Subgraph, r"^sg_\d\d$"),
)
Report = exact(
    execution_stats=optional(
        group(error_summary=ErrorSummary, execution_summary=ExecutionSummary, latency_stats=LatencyStats)
    ),
    memory_used=optional(group(neuron_runtime_used_bytes=RuntimeUsed, loaded_models=many(Model))),
    neuron_runtime_vcpu_usage=optional(group(vcpu_usage=UserSystem)),
    neuroncore_counters=optional(group(neuroncores_in_use=named(Core))),
)
Runtime = exact(pid=Count, address=Literal[""], neuron_runtime_tag=str, error=str, report=Report)
System = exact(
    memory_info=optional(
        group(memory_total_bytes=Count, memory_used_bytes=Count, swap_total_bytes=Count, swap_used_bytes=Count)
    ),
    neuron_hw_counters=optional(group(neuron_devices=many(Ecc))),
    vcpu_usage=optional(group(average_usage=Shares, usage_data=named(Shares), context_switch_count=Count)),
)
_OF_INSTANCE = (
    "instance_name instance_id instance_type instance_availability_zone instance_availability_zone_id instance_region "
    "ami_id subnet_id error"
)
InstanceInfo = exact(**dict.fromkeys(_OF_INSTANCE.split(), str), ultraserver_id=optional(str))
HardwareInfo = exact(
    **dict.fromkeys(("neuron_device_type", "neuron_device_version", "neuroncore_version", "error"), str),
    neuron_device_count=Count,
    neuron_device_memory_size=Count,
    neuroncore_per_device_count=Count,
    logical_neuroncore_config=Count,
)
K8sUser = exact(pod_name=str, namespace=str, container_name=list[str])
Record = exact(
    neuron_runtime_data=many(Runtime),
    system_data=System,
    instance_info=InstanceInfo,
    neuron_hardware_info=HardwareInfo,
    neuron_k8s_info=optional(group(neuroncores_k8s_info=named(K8sUser), neurondevices_k8s_info=named(K8sUser))),
)
