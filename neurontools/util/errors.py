"""The error that a command prints in one line, and the exit codes of all commands."""

EXIT_FAILURE = 1
EXIT_USAGE = 2
EXIT_NAGIOS_UNKNOWN = 3  # status UNKNOWN of a Nagios plugin, also for usage errors
EXIT_PERMISSION = 4
EXIT_UNHEALTHY = 5
EXIT_NOT_FOUND = 6
EXIT_HEALTH_UNKNOWN = 7
EXIT_NO_DAEMON = 12
EXIT_FAULT = 70  # EX_SOFTWARE of sysexits.h: a bug in the command itself
EXIT_TIMED_OUT = 124
EXIT_INTERRUPTED = 130


class UserError(Exception):
    """An error that ends the command. Its text is one line with the affected object, the cause and the next step.

    If `is_named`, the command prints its own name before the text.
    """

    def __init__(self, text: str, exit_code: int = EXIT_FAILURE, *, is_named: bool = True) -> None:
        super().__init__(text)
        self.exit_code = exit_code
        self.is_named = is_named
