"""The metric families of the original exporter, by its format's description: type, further labels, help text."""

from __future__ import annotations

_COUNTED = {
    "execution_errors": ({"runtime_tag", "error_type"}, "Execution errors total"),
    "execution_status": ({"runtime_tag", "status_type"}, "Execution status total"),
    "hardware_ecc_events": ({"neuron_device_index", "event_type"}, "Hardware ecc events total"),
}
_OF_HARDWARE = {"neuron_device_count", "neuroncore_per_device_count", "neuron_device_memory_size"}
_FAMILIES: dict[str, tuple[str, set[str], str]] = {
    "neuroncore_utilization_ratio": ("gauge", {"runtime_tag", "neuroncore"}, "NeuronCore utilization ratio"),
    **{
        f"neuroncore_memory_usage_{category}": (
            *("gauge", {"runtime_tag", "neuroncore", "memory_location"}),
            f"NeuronCore memory utilization for {category}",
        )
        for category in ("constants", "model_code", "model_shared_scratchpad", "runtime_memory", "tensors")
    },
    "neuron_runtime_memory_used_bytes": ("gauge", {"runtime_tag", "memory_location"}, "Runtime memory used bytes"),
    "neuron_runtime_vcpu_usage_ratio": ("gauge", {"runtime_tag", "usage_type"}, "Runtime vCPU utilization ratio"),
    **{f"{name}_total": ("counter", *description) for name, description in _COUNTED.items()},
    **{f"{name}_created": ("gauge", *description) for name, description in _COUNTED.items()},
    "execution_latency_seconds": ("gauge", {"runtime_tag", "percentile"}, "Execution latency in seconds"),
    **{
        f"system_{kind}_{amount}_bytes": ("gauge", set(), f"System {kind} {amount}_bytes bytes")
        for kind in ("memory", "swap")
        for amount in ("total", "used")
    },
    "system_vcpu_count": ("gauge", set(), "System vCPU count"),
    "system_vcpu_usage_ratio": ("gauge", {"usage_type"}, "System CPU utilization ratio"),
    "instance_info": ("gauge", set(), "EC2 instance information"),
    "neuron_hardware_info": ("gauge", _OF_HARDWARE, "Neuron Hardware Information"),
}
FORMAT = {name: (kind, labels) for name, (kind, labels, _) in _FAMILIES.items()}
HELP = {name: description for name, (_, _, description) in _FAMILIES.items()}
"""The help texts as public captures of the original have them."""


def helps(text: str) -> dict[str, str]:
    """The help texts of those of these families that a document of metrics has."""
    lines = (line.split(" ", 3)[2:] for line in text.splitlines() if line.startswith("# HELP "))
    return {name: description for name, description in lines if name in HELP}
