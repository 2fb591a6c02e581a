"""The command `neurond`.

Two stages, one process: the first reads flags and configuration and checks them, then executes the same command again
with the settings made; the second serves. So the daemon doesn't carry the memory that checking took.
"""

from __future__ import annotations

import os
import sys

from neurontools.errors import EXIT_INTERRUPTED, UserError

_SETTINGS = "_NEUROND_SETTINGS"


def main() -> int:
    """Runs the command; returns its exit code."""
    settings = os.environ.pop(_SETTINGS, None)
    try:
        if settings is not None:
            return _serve(settings)
        from neurond.startup.command_line import settings_from

        made = settings_from(sys.argv[1:])
        if made is None:
            return 0
        sys.stdout.flush()
        os.environ[_SETTINGS] = made.to_json()
        # -P: the current directory is no place to import from.
        command = [sys.executable, *_interpreter_flags(), "-P", "-m", "neurond", *sys.argv[1:]]
        os.execv(sys.executable, command)  # noqa: S606
    except UserError as error:
        print(error, file=sys.stderr)
        return error.exit_code
    except KeyboardInterrupt:
        return EXIT_INTERRUPTED


def _serve(text: str) -> int:
    import asyncio
    import logging

    from neurond.daemon import Daemon
    from neurond.settings import Settings

    settings = Settings.from_json(text)
    logging.basicConfig(
        level=settings.log_level.upper(), stream=sys.stderr, format="neurond: %(levelname)s: %(message)s"
    )

    async def run() -> None:
        await Daemon(settings).run()

    asyncio.run(run())
    return 0


def _interpreter_flags() -> list[str]:
    """The flags this interpreter was started with, such as -X and -W."""
    import subprocess

    return subprocess._args_from_interpreter_flags()  # type: ignore[attr-defined,no-any-return]  # noqa: SLF001


if __name__ == "__main__":
    sys.exit(main())
