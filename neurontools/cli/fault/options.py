"""The options of neuron-fault; parsing, help and completion all come from this table."""

from __future__ import annotations

from neurontools.cli.line.options import FILES, Option

VERBS = ("inject", "list", "heal", "kinds", "plan")
OPTIONS = (
    Option("device", "into this device", short="d", value="N"),
    Option("core", "into this NeuronCore, a logical one under the host's default", short="c", value="N"),
    Option("pid", "into the NeuronCores of this process", short="p", value="PID"),
    Option("after-executions", "the execution after so many good ones meets it; default: the next", value="N"),
    Option("after", "not before so many seconds have passed", value="SECONDS"),
    Option("for", "it ends by itself after so many seconds", value="SECONDS"),
    Option("probability", "each execution meets it with this chance; default: 1", value="P"),
    Option("amount", "how much of it, for kinds that have an amount; kinds lists them", value="X"),
    Option("part", "which part of the device, for kinds about a part", value="NAME"),
    Option("seed", "of the chance; the same seed has the same executions meet it; default: 0", value="N"),
    Option("dry-run", "of plan: tell the story and inject nothing"),
    Option("hostfile", "of plan: on the hosts of this file, as of neuron-fleet-sim", value="FILE", completes=FILES),
    Option("json", "of inject, list, kinds and plan: a JSON document instead of text", short="j"),
    Option("socket", "ask the monitor daemon at this socket, and no other", value="PATH", completes=FILES),
    Option("completion", "print a completion script for this shell", value="SHELL", words=("bash", "zsh", "fish")),
    Option("version", "print the version", ends=True),
    Option("help", "print this text", short="h", ends=True),
)
USAGE = """neuron-fault inject KIND --device N | --core N | --pid PID [options]
       neuron-fault list | heal [NUMBER ...] | kinds | plan FILE"""
SUMMARY = (
    "Injects faults into simulated Neuron devices: counters, logs and the training processes meet them as on hardware."
)
NOTES = """\
Faults are for hosts that neurond simulates, and for the user who runs it. All that they cause is marked as injected.
heal without numbers takes all faults back, with all that they left behind.

Environment:
  NEURONTOOLS_SOCKET        as --socket
"""
EXIT_CODES = (
    (0, "success"),
    (1, "an option is unknown, the devices are real, or the command failed"),
    (2, "the kind, a number or a combination of options is invalid; nothing was injected"),
    (4, "this user may not use the socket, or may not inject faults"),
    (6, "the device, NeuronCore, process or fault does not exist"),
    (12, "no daemon answers"),
    (70, "a defect of the command"),
    (124, "the daemon did not answer in time"),
    (130, "interrupted"),
)
