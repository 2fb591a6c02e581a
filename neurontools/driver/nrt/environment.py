"""The variables by which a process tells the Neuron runtime what it wants, and the reading of the LNC.

Imports nothing, because `neuron-ls` waits for it.
"""

from __future__ import annotations

TYPE_CHECKING = False  # as typing has it, without its import
if TYPE_CHECKING:
    from collections.abc import Mapping

VISIBLE_CORES = "NEURON_RT_VISIBLE_CORES"
NUM_CORES = "NEURON_RT_NUM_CORES"
LNC = "NEURON_LOGICAL_NC_CONFIG"
LNC_ALIAS = "NEURON_RT_VIRTUAL_CORE_SIZE"
PROCESS_TAG = "NEURON_PROCESS_TAG"
INSPECT_ENABLE = "NEURON_RT_INSPECT_ENABLE"
INSPECT_OUTPUT_DIRECTORY = "NEURON_RT_INSPECT_OUTPUT_DIR"
INSPECT_MOST_EVENTS = "NEURON_RT_INSPECT_SYS_TRACE_MAX_EVENTS_PER_NC"
PROFILE_RUN = "NEURONTOOLS_PROFILE_RUN"
PROFILE_STEPS = "NEURONTOOLS_PROFILE_STEPS"


class InvalidCoreRequest(ValueError):
    """An environment variable asks for cores in a way that can't be meant; the text names it, the cause, the cure."""


def logical_neuroncore_config(environment: Mapping[str, str]) -> int | None:
    """The LNC that the environment sets, 1 or 2; None when it sets none. Raises InvalidCoreRequest."""
    for name in (LNC, LNC_ALIAS):
        text = environment.get(name, "").strip()
        if text:
            if text not in ("1", "2"):
                raise InvalidCoreRequest(
                    f"{name}={shown(text)}: not a logical NeuronCore configuration; set it to 1 or 2, or unset it"
                )
            return int(text)
    return None


def shown(text: str) -> str:
    """The value of a variable in an error: quoted, and cut where it is long."""
    return repr(text if len(text) <= 60 else text[:57] + "...")
