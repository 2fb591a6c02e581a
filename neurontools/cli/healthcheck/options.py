"""The options of neuron-healthcheck."""

from neurontools.cli.line.options import FILES, Option

FORMATS = ("text", "json", "npd", "slurm", "nagios")
LEVELS = ("notice", "warning", "critical")
PROBLEMS = ("node", "user", "all")

OPTIONS = (
    Option("format", "whose form the verdict has; default: text", value="FORMAT", words=FORMATS),
    Option("level", "from where on a finding counts; default: warning", value="LEVEL", words=LEVELS),
    Option(
        "problems",
        "whose problems count; default: all, with --format npd or slurm node",
        value="WHOSE",
        words=PROBLEMS,
    ),
    Option("only", "only findings of these names count, such as HANG,NEEDS_RESET", value="NAMES", joins=True),
    Option("expect", "fewer Neuron devices than this are a finding", value="N"),
    Option("timeout", "when to give up; default: 10, with --format npd 3, with slurm 40", value="SECONDS"),
    Option(
        "node", "with --format slurm: the name of this node; default: SLURMD_NODENAME, else the host's", value="NAME"
    ),
    Option("no-undrain", "with --format slurm: leave it to others to undrain the node"),
    Option("dry-run", "with --format slurm: say what would be done, and don't"),
    Option("socket", "ask the monitor daemon at this socket, and no other", value="PATH", completes=FILES),
    Option("completion", "print a completion script for this shell", value="SHELL", words=("bash", "zsh", "fish")),
    Option("version", "print the version", ends=True),
    Option("help", "print this text", short="h", ends=True),
)
USAGE = "neuron-healthcheck [options]"
SUMMARY = "Says in one line whether the Neuron devices of this host are well, to those who drain, replace or alert."
NOTES = """\
It goes by what the monitor daemon (neurond) has found; where none runs, it has the devices read once.

Environment:
  NEURONTOOLS_SOCKET  as --socket
  SLURMD_NODENAME     the name of this node, set by slurmd
"""
EXIT_CODES = (
    (0, "the host is healthy; for Nagios also a notice; for Slurm: the actions succeeded"),
    (1, "the host is unhealthy; for Nagios a warning; for Slurm: scontrol failed"),
    (2, "the health is unknown, or an option is invalid; for Nagios: critical"),
    (3, "for Nagios: the health is unknown, or an option is invalid"),
    (70, "a defect of the command"),
    (130, "interrupted"),
)
