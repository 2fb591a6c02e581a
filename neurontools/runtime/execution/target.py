"""Whether a compiled model can run on the cores of this process: what it was compiled for, and what they are.

The compiler takes any --target on any host; it is the load of the NEFF that fails. That inf2, trn1 and trn1n can run
each other's NEFFs follows from their having the same NeuronCores; the documents don't say it.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from neurontools.driver.environment import LNC
from neurontools.driver.neuron_runtime import NrtStatus
from neurontools.runtime.execution.failure import ExecutionFailed
from neurontools.runtime.programs.compiler_flags import VARIABLE, CompilerFlags

ALLOW_LEGACY = "NEURON_RT_ALLOW_LEGACY_NEFF"
_NEURONCORE_VERSIONS = {"inf1": 1, "inf2": 2, "trn1": 2, "trn2": 3, "trn3": 4}


def neuroncore_version(name: str) -> int | None:
    """The version of the NeuronCores of an instance type or a --target; None for one that nobody knows."""
    family = re.match(r"(inf|trn)\d", name)
    return _NEURONCORE_VERSIONS.get(family[0]) if family else None


def check_load(
    flags: CompilerFlags,
    module: str,
    instance_type: str | None,
    logical_neuroncore_config: int | None,
    environment: Mapping[str, str],
) -> None:
    """ExecutionFailed when a model with these flags can't run here; what is unknown (None) is not held against it.

    NEURON_RT_ALLOW_LEGACY_NEFF=1 lets newer cores run NEFFs of older ones.
    """
    if flags.target is not None and instance_type is not None:
        wanted, own = neuroncore_version(flags.target), neuroncore_version(instance_type)
        is_legacy = wanted is not None and own is not None and wanted < own
        allowed = environment.get(ALLOW_LEGACY, "").lower() in ("1", "true")
        if None not in (wanted, own) and wanted != own and not (is_legacy and allowed):
            raise ExecutionFailed(
                NrtStatus.UNSUPPORTED_NEFF_VERSION,
                f"{module} was compiled with --target {flags.target}, this host is a {instance_type}; leave --target "
                f"out of {VARIABLE}" + (f", or set {ALLOW_LEGACY}=1" if is_legacy else ""),
            )
    wanted_size = flags.logical_neuroncore_config
    if None not in (wanted_size, logical_neuroncore_config) and wanted_size != logical_neuroncore_config:
        raise ExecutionFailed(
            NrtStatus.INVALID,
            f"Cannot run Neff {module}/model.neff with Logical Core Size of {wanted_size}. Runtime is currently "
            f"configured with {LNC}={logical_neuroncore_config}; give both the same value",
        )
