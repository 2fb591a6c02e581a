"""The data model of a snapshot: every quantity of a host with its unit and meaning.

All classes are frozen dataclasses. `None` means unknown and never replaces 0. The name of a quantity ends with its
unit: `_bytes`, `_seconds`, `_ratio` (0..1); `_total` marks a counter that only grows. The fields have the names of
`neuron.proto`, and `neurontools.rpc.convert` converts by name.

Cores are physical NeuronCores. Users see logical cores, each of one or more physical cores (LNC); `logical_cores`
groups the physical cores of a snapshot.
"""

from neurontools.util.light_imports import lazy_names

TYPE_CHECKING = False  # not imported, because importing `typing` takes several milliseconds
if TYPE_CHECKING:
    from neurontools.model.device import (
        Device,
        DeviceMemory,
        EccCounters,
        HbmStack,
        HostMemory,
        NeuronCore,
        PowerUtilization,
        ReportedHealth,
        memory_categories,
        sum_device_memory,
        sum_host_memory,
    )
    from neurontools.model.execution import (
        ErrorCounters,
        ExecutionCounters,
        LatencyHistogram,
        LatencyPercentiles,
        StatusCounters,
    )
    from neurontools.model.finding import Finding, Health, Severity
    from neurontools.model.host import (
        Disk,
        Host,
        Instance,
        NetworkInterface,
        RdmaPort,
        UltraServerNode,
        VcpuTimes,
        VcpuUsage,
    )
    from neurontools.model.process import (
        Attribution,
        CoreWork,
        EndedProcess,
        Job,
        LoadedModel,
        OperatorTime,
        PodAllocation,
        Process,
        RecentSteps,
        ScriptAdvice,
        Subgraph,
        TrainingCounters,
        TrainingRates,
    )
    from neurontools.model.serving import ModelPlacement, ServedModel, ServedModelRates
    from neurontools.model.snapshot import (
        FaultState,
        InjectedFault,
        LogicalNeuronCore,
        Snapshot,
        SourceKind,
        logical_cores,
    )

__all__ = [
    "Attribution",
    "CoreWork",
    "Device",
    "DeviceMemory",
    "Disk",
    "EccCounters",
    "EndedProcess",
    "ErrorCounters",
    "ExecutionCounters",
    "FaultState",
    "Finding",
    "HbmStack",
    "Health",
    "Host",
    "HostMemory",
    "InjectedFault",
    "Instance",
    "Job",
    "LatencyHistogram",
    "LatencyPercentiles",
    "LoadedModel",
    "LogicalNeuronCore",
    "ModelPlacement",
    "NetworkInterface",
    "NeuronCore",
    "OperatorTime",
    "PodAllocation",
    "PowerUtilization",
    "Process",
    "RdmaPort",
    "RecentSteps",
    "ReportedHealth",
    "ScriptAdvice",
    "ServedModel",
    "ServedModelRates",
    "Severity",
    "Snapshot",
    "SourceKind",
    "StatusCounters",
    "Subgraph",
    "TrainingCounters",
    "TrainingRates",
    "UltraServerNode",
    "VcpuTimes",
    "VcpuUsage",
    "logical_cores",
    "memory_categories",
    "sum_device_memory",
    "sum_host_memory",
]
if not TYPE_CHECKING:
    __getattr__, __dir__ = lazy_names(
        __name__,
        __all__,
        "execution",  # each module imports only modules above it, so a name loads no more than it needs
        "finding",
        "host",
        "device",
        "serving",
        "process",
        "snapshot",
    )
