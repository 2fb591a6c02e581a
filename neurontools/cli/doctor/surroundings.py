"""The host around: kernel, container, kernel log, and the variables that the runtime goes by."""

from __future__ import annotations

import os
import platform
from collections.abc import Iterator
from difflib import get_close_matches
from pathlib import Path

from neurontools.cli.doctor.check import Check, Level, Place
from neurontools.driver.environment import (
    LNC,
    LNC_ALIAS,
    NUM_CORES,
    PROCESS_TAG,
    VISIBLE_CORES,
    InvalidCoreRequest,
    logical_neuroncore_config,
)
from neurontools.driver.neuron_runtime import CoreRequest
from neurontools.util.process_text import shown_value

HOST, VARIABLES = "host", "variables"
_PREFIXES = ("NEURON", "XLA_", "PJRT_", "TORCH_NEURON")
_MOST_VARIABLES = 100
_KNOWN = (
    VISIBLE_CORES,
    NUM_CORES,
    LNC,
    LNC_ALIAS,
    PROCESS_TAG,
    "NEURON_CC_FLAGS",
    "NEURON_COMPILE_CACHE_URL",
    "NEURON_FAIL_ON_NAN",
    "NEURON_RT_EXEC_TIMEOUT",
    "NEURON_RT_LOG_LEVEL",
    "NEURON_RT_LOG_LOCATION",
    "NEURON_RT_ROOT_COMM_ID",
    "NEURON_RT_STOCHASTIC_ROUNDING_EN",
    "NEURON_RT_INSPECT_ENABLE",
    "NEURONTOOLS_SOCKET",
    "NEURONTOOLS_SIMULATE",
)


def examine(place: Place) -> Iterator[Check]:
    """What is there, and what can't be meant."""
    container = " in a container" if is_container(place) else ""
    kernel = f"{platform.system()} {platform.release()} {platform.machine()}"
    yield Check(HOST, Level.OK, f"{kernel}{container}, user {'root' if os.geteuid() == 0 else os.geteuid()}")
    kernel_log = f"{place.roots.dev}/kmsg"
    if os.access(kernel_log, os.R_OK):
        yield Check(HOST, Level.OK, f"{kernel_log} can be read: neurond sees what the kernel logs of devices")
    elif place.roots.has_devices:
        yield Check(
            HOST,
            Level.NOTE,
            f"{kernel_log} can't be read by this user; where neurond can't either, it misses NEURON_HW_ERR",
            "run neurond by the shipped unit, or give it CAP_SYSLOG and the file",
        )
    yield from _variables(place)


def is_container(place: Place) -> bool:
    """Whether this process is in a container, as far as the usual marks tell."""
    marks = ("/.dockerenv", "/run/.containerenv", "/var/run/secrets/kubernetes.io")
    return any(Path(mark).exists() for mark in marks) or "container" in place.environment


def variables(place: Place) -> list[tuple[str, str]]:
    """The variables that matter, with secrets hidden, by name."""
    found = sorted(name for name in place.environment if name.startswith(_PREFIXES))[:_MOST_VARIABLES]
    return [(name, shown_value(name, place.environment[name])) for name in found]


def _variables(place: Place) -> Iterator[Check]:
    for name, value in variables(place):
        near = get_close_matches(name, _KNOWN, n=1, cutoff=0.9)
        if name not in _KNOWN and near:
            yield Check(VARIABLES, Level.PROBLEM, f"{name} is set, which nobody reads", f"was {near[0]} meant?")
        else:
            yield Check(VARIABLES, Level.OK, f"{name}={value[:200]}")
    try:
        logical_neuroncore_config(place.environment)
        CoreRequest.from_environment(place.environment)
    except InvalidCoreRequest as error:
        yield Check(VARIABLES, Level.PROBLEM, str(error))
