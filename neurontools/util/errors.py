"""Errors that a command prints in one line, and exit codes."""

EXIT_FAILURE = 1
EXIT_USAGE = 2
EXIT_NAGIOS_UNKNOWN = 3  # UNKNOWN of Nagios plugins, used instead of 2
EXIT_PERMISSION = 4
EXIT_UNHEALTHY = 5
EXIT_NOT_FOUND = 6
EXIT_HEALTH_UNKNOWN = 7
EXIT_NO_DAEMON = 12
EXIT_FAULT = 70  # EX_SOFTWARE of sysexits.h: a fault of the command itself
EXIT_TIMED_OUT = 124
EXIT_INTERRUPTED = 130


class UserError(Exception):
    """An error that ends the command. The text is one line with the object, the cause and the next step.

    `is_named`: the command's name precedes the text.
    """

    def __init__(self, text: str, exit_code: int = EXIT_FAILURE, *, is_named: bool = True) -> None:
        super().__init__(text)
        self.exit_code = exit_code
        self.is_named = is_named
