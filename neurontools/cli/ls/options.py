"""The option table of neuron-ls, for parsing, help and completion."""

from neurontools.cli.line import (
    DEVICE_OPTION,
    END_CODES,
    HOST_OPTIONS,
    INFORMATION_OPTIONS,
    SIMULATE_OPTION,
    SOCKET_OPTION,
    TLS_OPTIONS,
    Option,
)

OPTIONS = (
    Option("wide", "commands up to 80 characters instead of 40", short="w"),
    Option("show-all-procs", "also processes that don't use the Neuron runtime, such as monitors", short="a"),
    Option("topology", "a picture of the NeuronLink topology below the table", short="t"),
    Option("json-output", "a JSON document instead of the table", short="j", aliases=("json",)),
    Option(
        "output-format",
        "json: one JSON object for the instance and its devices, instead of the table",
        value="FORMAT",
        words=("json",),
    ),
    DEVICE_OPTION,
    Option("ended", "the processes that have ended instead: what they used, with sums by user and by job"),
    Option("user", "of --ended: only this user's, a name or a number", value="USER"),
    Option("since", "of --ended: only what ended within this time, such as 30m, 12h or 1d", value="AGE"),
    Option("query", "these fields instead of the table, for scripts; see --help-query", value="FIELDS"),
    Option("format", "of --query and --ended: csv or json, and noheader, nounits", value="PARTS"),
    Option("loop", "repeat every so many seconds: a row for each device, or the fields of --query", value="SECONDS"),
    Option("count", "of --loop: end after so many times", short="n", value="N"),
    Option("help-query", "print the fields that --query knows", ends=True),
    Option("wait-free", "wait until N NeuronCores in a row are free, and print which", value="N"),
    Option("timeout", "of --wait-free: give up after so many seconds, with exit code 124", value="SECONDS"),
    Option("health", "print the findings; exit code 5 if a device is unhealthy, 7 if the health of some is unknown"),
    SOCKET_OPTION,
    SIMULATE_OPTION,
    *HOST_OPTIONS,
    *TLS_OPTIONS,
    Option("relay", "connect standard input and output to the daemon; neuron-top --hosts runs this by SSH"),
    *INFORMATION_OPTIONS,
)
USAGE = "neuron-ls [options]"
SUMMARY = "Lists the Neuron devices of this host, their NeuronCores, and the processes that use them."
NOTES = "Without --socket and --simulate it asks your own monitor daemon (neurond), then the system's.\n"
VARIABLES = (
    ("NEURON_LOGICAL_NC_CONFIG", "logical NeuronCore configuration to count cores by, 1 or 2 (trn2 and later)"),
)
EXIT_CODES = (
    (0, "the requested text was printed"),
    (1, "there are no devices, an option is unknown, or something failed"),
    (2, "an option or a variable has an invalid value"),
    (4, "this user may not use the socket"),
    (5, "--health found a device unhealthy"),
    (6, "there is no such device"),
    (7, "--health found no device unhealthy, but the health of some devices is unknown"),
    (12, "no daemon answers, or one of several hosts doesn't"),
    (124, "the daemon did not answer, or cores did not become free, in time"),
    *END_CODES,
)
