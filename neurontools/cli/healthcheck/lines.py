"""Formats the verdict as a line with an exit code, for people, programs, the node problem detector and Nagios.

The node problem detector takes exit code 0 for healthy, 1 for unhealthy and all others for unknown. It truncates
messages at a configured length (https://github.com/kubernetes/node-problem-detector, pkg/custompluginmonitor). Nagios
takes 0 for OK, 1 for WARNING, 2 for CRITICAL and 3 for UNKNOWN. The text after a vertical bar is performance data
(https://www.monitoring-plugins.org).
"""

from __future__ import annotations

from neurontools.model import health
from neurontools.model.finding import Severity
from neurontools.model.health import HostVerdict
from neurontools.util.errors import EXIT_NAGIOS_UNKNOWN
from neurontools.util.terminal import escape_controls, truncate

NO_ERROR = "Neuron has no error"
HEALTH_UNKNOWN = "Neuron health is not known: "
HAS_ERROR = "NeuronHasError_"  # prefix of the error name, as AWS's detector writes it
_MOST_NPD_CHARACTERS = 500
_EXIT_CODES = {True: 0, False: 1, None: 2}
_STATUS = {True: "ok", False: "unhealthy", None: "unknown"}
_NAGIOS = {0: "OK", 1: "WARNING", 2: "CRITICAL", 3: "UNKNOWN"}


def _text_verdict(verdict: HostVerdict) -> tuple[str, int]:
    """Formats a verdict: "critical: device 3: REASON; ACTION (and 1 more)" or "ok: all 16 devices are healthy"."""
    return f"{severity_word(verdict)}: {_one_line(verdict.sentence)}", _EXIT_CODES[verdict.is_healthy]


def _json_verdict(verdict: HostVerdict) -> tuple[str, int]:
    from neurontools.util.formats import json_text

    answer = {
        "status": _STATUS[verdict.is_healthy],
        "healthy": verdict.is_healthy,
        "severity": None if verdict.severity is None else verdict.severity.name.lower(),
        "devices": verdict.device_count,
        "summary": verdict.sentence,
        "findings": [health.describe_finding(finding) for finding in verdict.findings],
    }
    return json_text(answer), _EXIT_CODES[verdict.is_healthy]


def _npd_verdict(verdict: HostVerdict) -> tuple[str, int]:
    if verdict.is_healthy:
        return NO_ERROR, 0
    named = f"{HAS_ERROR}{health.finding_name(verdict.findings[0])}: " if verdict.findings else HEALTH_UNKNOWN
    return truncate(_one_line(named + verdict.sentence), _MOST_NPD_CHARACTERS), _EXIT_CODES[verdict.is_healthy]


def _nagios_verdict(verdict: HostVerdict) -> tuple[str, int]:
    severity = verdict.severity
    exit_code = EXIT_NAGIOS_UNKNOWN if severity is None else max(0, severity - Severity.NOTICE)
    counts = (
        "" if verdict.device_count is None else f" | devices={verdict.device_count} findings={len(verdict.findings)}"
    )
    return f"NEURON {_NAGIOS[exit_code]} - {_one_line(verdict.sentence).replace('|', '/')}{counts}", exit_code


FORMATTERS = {"text": _text_verdict, "json": _json_verdict, "npd": _npd_verdict, "nagios": _nagios_verdict}
"""Functions by format. Each returns the line and the exit code of a verdict. The slurm format is not one of them."""


def severity_word(verdict: HostVerdict) -> str:
    """Returns the severity of a verdict: "ok", "notice", "warning", "critical" or "unknown"."""
    return "unknown" if verdict.severity is None else verdict.severity.name.lower()


def _one_line(text: str) -> str:
    """Escapes control characters, so that the text is one line."""
    return escape_controls(text)
