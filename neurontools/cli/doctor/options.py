"""The options of neuron-doctor."""

from __future__ import annotations

from neurontools.cli.line.options import FILES, Option

OPTIONS = (
    Option("json-output", "print what was found as JSON", short="j", aliases=("json",)),
    Option(
        "bundle",
        "write it all to this file for a report, redacted; what it holds is listed first",
        value="FILE.tar.gz",
        completes=FILES,
    ),
    Option("yes", "with --bundle: write it without asking", short="y"),
    Option("socket", "look at the monitor daemon at this socket, and no other", value="PATH", completes=FILES),
    Option("completion", "print a completion script for this shell", value="SHELL", words=("bash", "zsh", "fish")),
    Option("version", "print the version", ends=True),
    Option("help", "print this text", short="h", ends=True),
)
USAGE = "neuron-doctor [options]"
SUMMARY = "Says what of the Neuron tools, driver and daemon is there on this host, what is wrong, and what to do."
NOTES = """\
Nothing is changed and no device is opened.

Environment:
  NEURONTOOLS_SOCKET  as --socket
"""
EXIT_CODES = (
    (0, "no check found a problem, or the bundle was written"),
    (1, "a check found a problem, an option is unknown, or the bundle could not be written"),
    (2, "an option has an invalid value"),
    (70, "a defect of the command"),
    (130, "interrupted"),
)
