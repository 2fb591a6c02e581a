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

HELP: dict[str, str] = {
    "neuroncore_utilization_ratio": "NeuronCore utilization ratio",
    "neuroncore_memory_usage_constants": "NeuronCore memory utilization for constants",
    "neuroncore_memory_usage_model_code": "NeuronCore memory utilization for model_code",
    "neuroncore_memory_usage_model_shared_scratchpad": "NeuronCore memory utilization for model_shared_scratchpad",
    "neuroncore_memory_usage_runtime_memory": "NeuronCore memory utilization for runtime_memory",
    "neuroncore_memory_usage_tensors": "NeuronCore memory utilization for tensors",
    "neuron_runtime_memory_used_bytes": "Runtime memory used bytes",
    "neuron_runtime_vcpu_usage_ratio": "Runtime vCPU utilization ratio",
    "execution_errors_total": "Execution errors total",
    "execution_errors_created": "Execution errors total",
    "execution_status_total": "Execution status total",
    "execution_status_created": "Execution status total",
    "execution_latency_seconds": "Execution latency in seconds",
    "hardware_ecc_events_total": "Hardware ecc events total",
    "hardware_ecc_events_created": "Hardware ecc events total",
    "system_memory_total_bytes": "System memory total_bytes bytes",
    "system_memory_used_bytes": "System memory used_bytes bytes",
    "system_swap_total_bytes": "System swap total_bytes bytes",
    "system_swap_used_bytes": "System swap used_bytes bytes",
    "system_vcpu_count": "System vCPU count",
    "system_vcpu_usage_ratio": "System CPU utilization ratio",
    "instance_info": "EC2 instance information",
    "neuron_hardware_info": "Neuron Hardware Information",
}
"""The help texts as public captures of the original have them."""


def helps(text: str) -> dict[str, str]:
    """The help texts of those of these families that a document of metrics has."""
    lines = (line.split(" ", 3)[2:] for line in text.splitlines() if line.startswith("# HELP "))
    return {name: told for name, told in lines if name in HELP}
