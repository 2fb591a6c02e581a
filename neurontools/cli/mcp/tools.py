"""The tools of neuron-mcp: one table of their names, parameters and documents. Checks arguments and bounds answers."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from neurontools.cli.mcp import documents
from neurontools.cli.mcp.host_access import HostAccess
from neurontools.util.errors import EXIT_USAGE, UserError
from neurontools.util.formats import json_text
from neurontools.util.terminal import error_excerpt
from neurontools.views.history_document import QUANTITIES

MOST_ANSWER_BYTES = 64 * 2**10
"""Size limit of an answer, about 20,000 tokens of a language model."""

_LONGEST_TEXT = 400
_MOST_ITEMS = 64


@dataclass(frozen=True, slots=True)
class Parameter:
    """A parameter of a tool. `kind` is a type of JSON Schema; an array holds integers.

    Numbers lie between `least` and `most`. A parameter with a `default` of None may be left out, unless `is_required`.
    """

    name: str
    kind: str
    text: str
    default: object = None
    least: float = 0
    most: float = 2**31 - 1
    words: tuple[str, ...] = ()
    is_required: bool = False

    @property
    def schema(self) -> dict[str, Any]:
        """The JSON Schema of a value."""
        found: dict[str, Any] = {"type": self.kind, "description": self.text}
        limits = {"minimum": self.least, "maximum": self.most}
        if self.kind == "string":
            found["maxLength"] = _LONGEST_TEXT
        elif self.kind == "array":
            found |= {"items": {"type": "integer", **limits}, "maxItems": _MOST_ITEMS}
        elif self.kind != "boolean":
            found |= limits
        if self.words:
            found["enum"] = list(self.words)
        return found if self.default is None else {**found, "default": self.default}

    def check(self, value: object) -> object:
        """Returns the value, or the default for None. Raises UserError if it is not valid."""
        if value is None and not self.is_required:
            return self.default
        if not self._is_valid(value):
            shown = error_excerpt(str(value)[:_LONGEST_TEXT])
            raise UserError(f"{self.name} {shown}: give {self._wanted}", EXIT_USAGE)
        return value

    def _is_valid(self, value: object) -> bool:
        if isinstance(value, str):
            is_word = not self.words or value in self.words
            return self.kind == "string" and 0 < len(value) <= _LONGEST_TEXT and "\0" not in value and is_word
        if isinstance(value, bool):
            return self.kind == "boolean"
        if isinstance(value, list):
            return self.kind == "array" and len(value) <= _MOST_ITEMS and all(map(self._is_integer, value))
        return self._is_integer(value) if self.kind == "integer" else self.kind == "number" and self._is_number(value)

    def _is_integer(self, value: object) -> bool:
        return isinstance(value, int) and not isinstance(value, bool) and self.least <= value <= self.most

    def _is_number(self, value: object) -> bool:
        return isinstance(value, (int, float)) and math.isfinite(value) and self.least <= value <= self.most

    @property
    def _wanted(self) -> str:
        if self.words:
            return f"one of {', '.join(self.words)}"
        if self.kind == "string":
            return f"a text of 1 to {_LONGEST_TEXT} characters"
        if self.kind == "array":
            return f"a list of at most {_MOST_ITEMS} whole numbers from {self.least:.15g} to {self.most:.15g}"
        if self.kind == "boolean":
            return "true or false"
        number = "a whole number" if self.kind == "integer" else "a number"
        return f"{number} from {self.least:.15g} to {self.most:.15g}"


@dataclass(frozen=True, slots=True)
class Tool:
    """A read-only tool. `document` makes its answer from arguments that were checked against `parameters`."""

    name: str
    title: str
    text: str
    document: Callable[[HostAccess, documents.Arguments], Any]
    parameters: tuple[Parameter, ...] = ()

    @property
    def input_schema(self) -> dict[str, Any]:
        """The JSON Schema of the tool's arguments: an object with one property per parameter."""
        return {
            "type": "object",
            "properties": {parameter.name: parameter.schema for parameter in self.parameters},
            "required": [parameter.name for parameter in self.parameters if parameter.is_required],
            "additionalProperties": False,
        }

    def check(self, arguments: Mapping[str, object]) -> dict[str, Any]:
        """Returns a value for each parameter. Raises UserError for unknown or invalid arguments."""
        names = [parameter.name for parameter in self.parameters]
        unknown = next((name for name in arguments if name not in names), None)
        if unknown is not None:
            known = ", ".join(names) or "none"
            raise UserError(f"{self.name} has no argument {error_excerpt(unknown)}; it has: {known}", EXIT_USAGE)
        return {parameter.name: parameter.check(arguments.get(parameter.name)) for parameter in self.parameters}


@dataclass(frozen=True, slots=True)
class Answer:
    """The answer of a tool: a JSON document, and one line if lists in it are shortened."""

    document: str
    note: str = ""


def answer(tool: Tool, access: HostAccess, arguments: Mapping[str, object]) -> Answer:
    """Calls a tool. Raises UserError for invalid arguments, or if there is no answer."""
    checked = tool.check(arguments)
    limit = checked.get("limit")
    return bounded(tool.document(access, checked), limit if isinstance(limit, int) else None)


def bounded(document: Any, limit: int | None = None) -> Answer:
    """Encodes a document in at most `MOST_ANSWER_BYTES`. Shortens its lists to `limit` entries, or to fewer.

    Raises UserError if it is still too large.
    """
    longest = max(map(len, _lists(document).values()), default=0)
    kept = longest if limit is None else min(limit, longest)
    while True:
        shortened = _shortened(document, kept)
        text = json_text(shortened)
        if len(text) <= MOST_ANSWER_BYTES:
            break
        if kept <= 1:
            raise UserError(f"the answer is larger than {MOST_ANSWER_BYTES >> 10} KiB; ask for less", EXIT_USAGE)
        kept = min(kept - 1, max(1, kept * MOST_ANSWER_BYTES // len(text)))
    left_out = [
        f"{len(found) - kept} of {len(found)} {name}" for name, found in _lists(document).items() if len(found) > kept
    ]
    note = f"Left out: {', '.join(left_out)}. Narrow the question, or raise limit or offset." if left_out else ""
    return Answer(text, note)


def _lists(document: Any) -> dict[str, list[Any] | tuple[Any, ...]]:
    """Returns the lists that can be shortened, by name: the document itself, or its top-level lists of objects."""
    if isinstance(document, (list, tuple)):
        return {"entries": document}
    return {
        name: value
        for name, value in document.items()
        if isinstance(value, (list, tuple)) and value and isinstance(value[0], (dict, str))
    }


def _shortened(document: Any, length: int) -> Any:
    if isinstance(document, (list, tuple)):
        return document[:length]
    return {**document, **{name: value[:length] for name, value in _lists(document).items()}}


_HOST = Parameter("host", "string", "Name of one of several hosts, from list_hosts. Leave out for a single host.")
_DEVICES = Parameter("devices", "array", "Only these Neuron devices, by index.", most=1023)
_LIMIT = Parameter("limit", "integer", "Longest length of the lists in the answer.", 32, 1, 1000)
_PATH = "Path below the directory of --directory, without .. and links."

TOOLS = (
    Tool(
        "list_hosts",
        "Hosts",
        "Lists hosts, the worst first: health, gravest findings, cores held and free, utilization, users. "
        "The document of `neuron-top --hosts LIST --json` without details of devices.",
        documents.list_hosts,
        (
            Parameter("only_problems", "boolean", "Leave out healthy hosts.", False),
            Parameter("offset", "integer", "How many hosts to skip.", 0),
            Parameter("limit", "integer", "How many hosts to list.", 16, 1, 1000),
        ),
    ),
    Tool(
        "list_devices",
        "Devices and NeuronCores",
        "Lists the devices and NeuronCores of a host: health, findings, utilization, memory, ECC errors, and the PIDs "
        "that hold each core. Keys of `neuron-top --json`.",
        documents.list_devices,
        (_HOST, _DEVICES, Parameter("limit", "integer", "Longest length of the lists in the answer.", 128, 1, 4096)),
    ),
    Tool(
        "list_processes",
        "Who holds NeuronCores",
        "Lists the processes that hold NeuronCores: user, command, cores, utilization, memory, latency, job, and how "
        "training spends its time. Keys of `neuron-top --json`; show_process adds operators, advice and models.",
        documents.list_processes,
        (
            _HOST,
            _DEVICES,
            Parameter(
                "filter", "string", "Only matching processes, as neuron-top --filter: user=root (util<5 or mem>1G)"
            ),
            _LIMIT,
        ),
    ),
    Tool(
        "show_process",
        "One process",
        "Shows one process that holds NeuronCores, with its slowest operators, the advice for its script, its models, "
        "and its job. Keys of `neuron-top --json`.",
        documents.show_process,
        (Parameter("pid", "integer", "The PID.", least=1, is_required=True), _HOST, _LIMIT),
    ),
    Tool(
        "list_problems",
        "Problems and next steps",
        "Lists the verdict on each device and on the host: severity, findings with reason and next step (action), or "
        "why the health is unknown. The document of `neuron-ls --health --json`.",
        documents.list_problems,
        (_HOST, _DEVICES, Parameter("limit", "integer", "How many verdicts to list.", 128, 1, 1024)),
    ),
    Tool(
        "list_jobs",
        "Jobs and stragglers",
        "Lists jobs: state, ranks, step time, and the straggler (slowest_rank) with the part of the step that delays "
        "it (slowest_because). Keys of `neuron-top --json`; without host on many hosts, jobs that span hosts.",
        documents.list_jobs,
        (_HOST, _LIMIT),
    ),
    Tool(
        "explain_finding",
        "Evidence of a finding",
        "Shows the findings of a kind on a host with the devices, processes and jobs that they concern, and who has "
        "to act: the operator of the node, or the user.",
        documents.explain_finding,
        (
            Parameter("kind", "string", "Kind or name of the finding, such as slow_rank or HANG.", is_required=True),
            _HOST,
            _LIMIT,
        ),
    ),
    Tool(
        "get_history",
        "History of a quantity",
        "Returns a quantity over the last minutes, of the host, a device, a NeuronCore or a process: points, lowest, "
        "mean, highest and latest value. The daemon keeps about ten minutes by default.",
        documents.get_history,
        (
            Parameter("quantity", "string", "The quantity.", words=QUANTITIES, is_required=True),
            _HOST,
            Parameter("device_index", "integer", "Of this Neuron device.", most=1023),
            Parameter("neuroncore", "integer", "Of this logical NeuronCore.", most=65535),
            Parameter("pid", "integer", "Of this process.", least=1),
            Parameter("minutes", "number", "How far back.", 10, 0.1, 1440),
            Parameter("points", "integer", "Highest number of points.", 60, 1, 600),
        ),
    ),
    Tool(
        "list_ended",
        "Ended processes",
        "Lists processes that have ended, the latest first: how they ended, what they used and for how long, with "
        "totals by user and job. The document of `neuron-ls --ended --json`.",
        documents.list_ended,
        (
            _HOST,
            Parameter("user", "string", "Only those of this user, a name or number."),
            Parameter("since", "string", "Only those that ended within this time, such as 30m, 12h or 1d."),
            _LIMIT,
        ),
    ),
    Tool(
        "summarize_profile",
        "Profile of a training",
        "Summarizes a profile that `neuron-run --profile DIR` wrote: verdict with causes and next steps, time by "
        "phase, ranks, operators, graphs. The document of `neuron-profile show --json`.",
        documents.summarize_profile,
        (
            Parameter("path", "string", _PATH, is_required=True),
            Parameter("rank", "integer", "Only this rank.", most=10**6),
            Parameter("limit", "integer", "Longest length of the lists in the answer.", 10, 1, 1000),
        ),
    ),
    Tool(
        "estimate_run",
        "Estimate of a counted run",
        "Estimates memory, step time and cost of a run on instance types, from the counters that `neuron-run "
        "--summary-json FILE` wrote. The estimates of that document.",
        documents.estimate_run,
        (
            Parameter("path", "string", _PATH, is_required=True),
            Parameter("instance_types", "string", "Instance types separated by commas, or all.", is_required=True),
            Parameter("epoch_samples", "integer", "Samples of an epoch, for its cost.", least=1, most=10**15),
            _LIMIT,
        ),
    ),
    Tool(
        "find_free_cores",
        "Free NeuronCores",
        "Finds free NeuronCores in a row, as `neuron-ls --wait-free` prints them for NEURON_RT_VISIBLE_CORES; null if "
        "no such row is free now. Reserves nothing.",
        documents.find_free_cores,
        (
            Parameter("count", "integer", "How many NeuronCores.", least=1, most=65536, is_required=True),
            _HOST,
            _DEVICES,
        ),
    ),
)
BY_NAME = {tool.name: tool for tool in TOOLS}
