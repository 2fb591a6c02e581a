"""The metric families of the original exporter, by its format's description: type, further labels."""

from __future__ import annotations

FORMAT: dict[str, tuple[str, set[str]]] = {
    "neuroncore_utilization_ratio": ("gauge", {"runtime_tag", "neuroncore"}),
    **{
        f"neuroncore_memory_usage_{category}": ("gauge", {"runtime_tag", "neuroncore", "memory_location"})
        for category in ("constants", "model_code", "model_shared_scratchpad", "runtime_memory", "tensors")
    },
    "neuron_runtime_memory_used_bytes": ("gauge", {"runtime_tag", "memory_location"}),
    "neuron_runtime_vcpu_usage_ratio": ("gauge", {"runtime_tag", "usage_type"}),
    "execution_errors_total": ("counter", {"runtime_tag", "error_type"}),
    "execution_errors_created": ("gauge", {"runtime_tag", "error_type"}),
    "execution_status_total": ("counter", {"runtime_tag", "status_type"}),
    "execution_status_created": ("gauge", {"runtime_tag", "status_type"}),
    "execution_latency_seconds": ("gauge", {"runtime_tag", "percentile"}),
    "hardware_ecc_events_total": ("counter", {"neuron_device_index", "event_type"}),
    "hardware_ecc_events_created": ("gauge", {"neuron_device_index", "event_type"}),
    "system_memory_total_bytes": ("gauge", set()),
    "system_memory_used_bytes": ("gauge", set()),
    "system_swap_total_bytes": ("gauge", set()),
    "system_swap_used_bytes": ("gauge", set()),
    "system_vcpu_count": ("gauge", set()),
    "system_vcpu_usage_ratio": ("gauge", {"usage_type"}),
    "instance_info": ("gauge", set()),
    "neuron_hardware_info": (
        "gauge",
        {"neuron_device_count", "neuroncore_per_device_count", "neuron_device_memory_size"},
    ),
}
