"""`nccom-test`: measures collectives between NeuronCores, with the options and the table of AWS's command."""

import os
import sys
from contextlib import ExitStack

from neurontools.cli.daemon.connection import ask_or_start_daemon
from neurontools.cli.line import (
    END_CODES,
    INFORMATION_OPTIONS,
    SIMULATE_OPTION,
    SOCKET_OPTION,
    Option,
    exclude_each_other,
    parse_options,
    print_information,
    whole_option,
    word_option,
)
from neurontools.diagnose.nccom import (
    CHECKED_TYPE,
    HEADING,
    MOST_SIZES,
    OPERATIONS,
    TYPE_BYTES,
    Benchmark,
    BenchmarkFailed,
    BenchmarkRow,
    CollectiveBenchmark,
    average_text,
    parse_size,
    row_text,
    sizes_between,
)
from neurontools.util.command_lifecycle import run_command, write_text
from neurontools.util.errors import EXIT_FAILURE, EXIT_USAGE, UserError
from neurontools.util.terminal import error_excerpt, escape_controls

OPTIONS = (
    Option("nworkers", "the number of ranks; each uses a NeuronCore; required", short="r", value="N"),
    Option("nnodes", "the number of hosts; only 1", short="N", value="N"),
    Option("minbytes", "the first size; default: 32M", short="b", value="SIZE"),
    Option("maxbytes", "the last size; default: 32M, or the first size if that is larger", short="e", value="SIZE"),
    Option("stepbytes", "add this to get the next size; default: a tenth of the range", short="i", value="SIZE"),
    Option("stepfactor", "multiply by this to get the next size", short="f", value="N"),
    Option("iters", "the number of measured operations for each size; default: 20", short="n", value="N"),
    Option("warmup_iters", "the number of operations before those; default: 5", short="w", value="N"),
    Option("datatype", "the type of the data; default: uint8", short="d", value="TYPE", words=tuple(TYPE_BYTES)),
    Option("check", f"check all results; only with the type {CHECKED_TYPE}", short="c"),
    SOCKET_OPTION,
    SIMULATE_OPTION,
    *INFORMATION_OPTIONS,
)
USAGE = "nccom-test -r N [options] OPERATION"
SUMMARY = "Measures collectives between NeuronCores of this host."
NOTES = """\
OPERATION is all_reduce (allr), all_gather (allg), reduce_scatter (redsct), sendrecv or alltoall. Sizes take kb, MB and
GB: 1kb has 1024 bytes. Only free cores are used. On simulated cores, the times are those of the CPU.
"""
EXIT_CODES = (
    (0, "every size was measured, and no check found an error"),
    (1, "a rank failed, or a check found errors"),
    (2, "the test could not run, or an option is invalid"),
    *END_CODES,
)
ACTIONS = tuple(OPERATIONS)

_COMMAND = "nccom-test"
_MOST_RANKS = 1024
_MOST_ITERATIONS = 1_000_000
_DEFAULT_BYTES = 32 << 20
_SIMULATED_NOTE = "nccom-test: the cores are simulated: the CPU computes, so the times say nothing about hardware\n"


def main() -> None:
    run_command(_COMMAND, _run_benchmark)


def _run_benchmark(arguments: list[str]) -> int:
    try:
        words: list[str] = []
        given = parse_options(OPTIONS, arguments, words)
        if print_information(_COMMAND, sys.modules[__name__], given):
            return 0
        exclude_each_other(given, "simulate", "socket")
        benchmark = _benchmark(given, words)
        with ExitStack() as stack:
            socket_path = ask_or_start_daemon(_answering_socket, given, stack)
            return _print_benchmark(stack.enter_context(CollectiveBenchmark(socket_path, benchmark)))
    except UserError as error:
        # Exit code 1 means that the test failed, so an error needs another code.
        raise UserError(str(error), EXIT_USAGE) from error


def _benchmark(given: dict[str, str], words: list[str]) -> Benchmark:
    if len(words) != 1 or words[0] not in OPERATIONS:
        what = "no operation given" if not words else f"{error_excerpt(' '.join(words))} is no operation"
        raise UserError(f"{what}; give one of {', '.join(OPERATIONS)}", EXIT_USAGE)
    if "nworkers" not in given:
        raise UserError("the number of ranks is missing; give it with -r, such as -r 2", EXIT_USAGE)
    if whole_option(given, "nnodes", 1, 1) != 1:
        raise UserError("--nnodes: this command measures one host; leave it out", EXIT_USAGE)
    exclude_each_other(given, "stepbytes", "stepfactor")
    datatype = word_option(given, "datatype", tuple(TYPE_BYTES), "uint8")
    if "check" in given and datatype != CHECKED_TYPE:
        raise UserError(f"--check is for --datatype {CHECKED_TYPE}; give both, or neither", EXIT_USAGE)
    first = _size_option(given, "minbytes", _DEFAULT_BYTES)
    last = _size_option(given, "maxbytes", max(first, _DEFAULT_BYTES))
    if last < first:
        raise UserError("--maxbytes is smaller than --minbytes; exchange them, or give both", EXIT_USAGE)
    step = _size_option(given, "stepbytes", 0) or None
    sizes = sizes_between(first, last, step, whole_option(given, "stepfactor", None, 2, 1 << 20))
    if len(sizes) > MOST_SIZES:
        raise UserError(f"--stepbytes: more than {MOST_SIZES} sizes; give larger steps, or --stepfactor", EXIT_USAGE)
    return Benchmark(
        operation=OPERATIONS[words[0]],
        ranks=whole_option(given, "nworkers", 2, 2, _MOST_RANKS),
        datatype=datatype,
        sizes_bytes=sizes,
        iterations=whole_option(given, "iters", 20, 1, _MOST_ITERATIONS),
        warmup_iterations=whole_option(given, "warmup_iters", 5, 0, _MOST_ITERATIONS),
        checks="check" in given,
    )


def _size_option(given: dict[str, str], name: str, default: int) -> int:
    if name not in given:
        return default
    try:
        return parse_size(given[name])
    except ValueError:
        raise UserError(
            f"--{name} {error_excerpt(given[name])}: give a size from 1 to 1024GB, such as 8, 1kb, 32MB or 1GB",
            EXIT_USAGE,
        ) from None


def _answering_socket(path: str) -> str:
    """Returns the path if a daemon answers there. Raises NoDaemon or TimedOut otherwise."""
    from neurontools.client.daemon_client import Client

    with Client(path) as client:
        client.snapshot()
    return path


def _print_benchmark(run: CollectiveBenchmark) -> int:
    if run.is_simulated:
        os.write(2, _SIMULATED_NOTE.encode())
    rows: list[BenchmarkRow] = []
    try:
        for row in run.run():
            if not rows:
                write_text(HEADING + "\n")
            rows.append(row)
            write_text(row_text(row) + "\n")
    except BenchmarkFailed as error:
        heading = "" if rows else HEADING + "\n"
        write_text(
            f"{heading}{error.size_bytes:>12}    Failure: {escape_controls(str(error))}\n1 errors found - test failed\n"
        )
        return EXIT_FAILURE
    if run.wrong_elements:
        write_text(f"{run.wrong_elements} errors found - test failed\n")
        return EXIT_FAILURE
    write_text(average_text(rows) + "\n")
    return 0


if __name__ == "__main__":
    main()
