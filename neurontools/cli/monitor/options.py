"""The options of neuron-monitor; parsing, help and completion all come from this table."""

from __future__ import annotations

from neurontools.cli.line.options import FILES, INSTANCE_TYPES, Option

VERBOSE_WORDS = ("0", "1", "2", "3", "4")
OPTIONS = (
    Option(
        "config-file", "which metric groups, of which processes, how often", short="c", value="FILE", completes=FILES
    ),
    Option("verbose", "how much to tell on standard error; default: 0, nothing", value="0..4", words=VERBOSE_WORDS),
    Option("count", "end after so many records", short="n", value="N"),
    Option("once", "print one record and end", short="1"),
    Option("check-config", "check the configuration, print the outcome and end"),
    Option("json-schema", "print the JSON Schema of the records and end"),
    Option("socket", "ask the monitor daemon at this socket, and no other", value="PATH", completes=FILES),
    Option(
        "simulate",
        "records of a simulated, idle host of this instance type; needs no daemon",
        value="TYPE",
        completes=INSTANCE_TYPES,
    ),
    Option("replay", "records of a recording, by its own clock, without waiting", value="FILE", completes=FILES),
    Option("completion", "print a completion script for this shell", value="SHELL", words=("bash", "zsh", "fish")),
    Option("version", "print the version", ends=True),
    Option("help", "print this text", short="h", ends=True),
)
USAGE = "neuron-monitor [options]"
SUMMARY = "Prints a JSON document a line with the metrics of the Neuron devices of this host, for as long as it runs."
NOTES = """\
Without a configuration: all metric groups of all processes, every 5 seconds. The format is in neuron-monitor(1).
Without --socket and --simulate it asks your own monitor daemon (neurond), then the system's.

Environment:
  NEURONTOOLS_SOCKET        as --socket
  NEURONTOOLS_SIMULATE      as --simulate, when no socket is named
"""
EXIT_CODES = (
    (0, "all records that were asked for were printed"),
    (1, "an option is unknown, or something failed"),
    (2, "an option or the configuration is invalid"),
    (4, "the configuration or the socket may not be used by this user"),
    (6, "there is no such file"),
    (12, "no daemon answers"),
    (70, "a defect of the command"),
    (124, "the daemon did not answer in time"),
    (130, "interrupted"),
)
