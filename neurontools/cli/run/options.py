"""The options of neuron-run, and the parser that separates them from the script's arguments."""

from __future__ import annotations

from neurontools.cli.line.options import FILES, INSTANCE_TYPES, Option, parse_options
from neurontools.util.errors import EXIT_USAGE, UserError

_MOST_DIGITS = 18

OPTIONS = (
    Option("cores", "run on these NeuronCores, such as 0-3 or 2,3; sets NEURON_RT_VISIBLE_CORES", value="LIST"),
    Option(
        "nproc-per-node",
        "start so many workers with torchrun, a NeuronCore each",
        short="n",
        aliases=("nproc_per_node",),
        value="N",
    ),
    Option("simulate", "run on a simulated host of this instance type", value="TYPE", completes=INSTANCE_TYPES),
    Option("export-sysfs", "keep a tree like the driver's of the simulated host here", value="DIR", completes=FILES),
    Option("socket", "report to the monitor daemon at this socket", value="PATH", completes=FILES),
    Option("wait", "wait up to so many seconds until the cores are free; 0 is for ever", value="SECONDS"),
    Option("top", "show neuron-top while the script runs; its output follows when neuron-top was left"),
    Option(
        "summary-json",
        "write the summary to this file as JSON too; - is standard output",
        value="FILE",
        completes=FILES,
    ),
    Option(
        "profile",
        "write a profile of each worker into this directory, for neuron-profile, TensorBoard and Perfetto",
        value="DIR",
        completes=FILES,
    ),
    Option("profile-steps", "profile these steps alone, such as 10:15; 10: is all from the tenth", value="STEPS"),
    Option(
        "estimate",
        "say what the run would need, take and cost on these instance types, or on all",
        value="TYPES",
        completes=INSTANCE_TYPES,
    ),
    Option("calibrate", "narrow the estimate by the measured rows in this file", value="FILE", completes=FILES),
    Option("prices", "estimate with the prices in this file too", value="FILE", completes=FILES),
    Option("samples", "samples of an epoch, for its cost", value="N"),
    Option("advise", "print all performance advice, with sources"),
    Option("ignore", "leave out this advice, such as float32,nan", value="RULES"),
    Option("no-advice", "print no performance advice"),
    Option("quiet", "neither progress nor summary", short="q"),
    Option("module", "run a module, as python -m", short="m", value="MODULE", ends=True),
    Option("completion", "print a completion script for this shell", value="SHELL", words=("bash", "zsh", "fish")),
    Option("version", "print the version", ends=True),
    Option("help", "print this text", short="h", ends=True),
)
USAGE = "neuron-run [options] script.py [arguments …]"
SUMMARY = "Runs a PyTorch training script for Trainium on simulated NeuronCores, and prints a summary."
NOTES = """\
Options of neuron-run come before the script; what follows it is the script's.

Environment:
  NEURON_RT_VISIBLE_CORES, NEURON_RT_NUM_CORES  the NeuronCores to use; --cores goes before them
  NEURON_RT_INSPECT_ENABLE=1, NEURON_RT_INSPECT_OUTPUT_DIR  as --profile
  NEURONTOOLS_SOCKET                            as --socket
  NEURONTOOLS_SIMULATE                          as --simulate, when no socket is named
  NEURONTOOLS_DEVICE                            the name of the device in torch, xla or neuron

It ends with the exit code of the script, or of the worker that failed first, or with one of its own.
"""
EXIT_CODES = (
    (1, "an option is unknown, or something failed"),
    (2, "an option has an invalid value, or there is no script"),
    (4, "the socket may not be used by this user"),
    (12, "no daemon answers"),
    (70, "a defect of the command"),
    (124, "the NeuronCores did not become free, or the daemon did not answer, in time"),
    (130, "interrupted"),
)


def split_command_line(arguments: list[str]) -> tuple[dict[str, str], list[str]]:
    """Splits the command line into the options of neuron-run, and the script with its arguments."""
    takes_value = {flag for option in OPTIONS if option.value for flag in option.flags}
    position = 0
    while position < len(arguments):
        argument = arguments[position]
        if argument == "--":
            return parse_options(OPTIONS, arguments[:position]), arguments[position + 1 :]
        if not argument.startswith("-") or argument == "-":
            break
        position += 2 if argument in takes_value else 1
        if argument.partition("=")[0] in ("-m", "--module"):
            break
    return parse_options(OPTIONS, arguments[:position]), arguments[position:]


def parse_count(given: dict[str, str], name: str, most: int) -> int | None:
    """Returns the value of an option as a whole number; None if not given. Raises UserError if it is invalid."""
    text = given.get(name)
    if text is None:
        return None
    if not (text.isascii() and text.isdigit()) or len(text) > _MOST_DIGITS or int(text) > most:
        raise UserError(f"--{name} {text[:40]!r}: not a whole number up to {most}", EXIT_USAGE)
    return int(text)
