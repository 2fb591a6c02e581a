"""The command `neurond`.

It runs in two stages in one process. The first stage validates flags and configuration, then replaces itself (execv)
with the second stage, which serves. Thus the daemon does not keep the memory that validation took. With
--exit-with-parent, the first stage serves itself.
"""

from __future__ import annotations

import os
import sys

from neurontools.util.command_lifecycle import run_command, run_module

TYPE_CHECKING = False  # replaces typing.TYPE_CHECKING, whose import takes several milliseconds
if TYPE_CHECKING:
    from neurond.settings import Settings

_SETTINGS = "_NEUROND_SETTINGS"


def main() -> None:
    run_command("neurond", _run, is_service=True)


def fleet_sim() -> None:
    run_module("neurond.fleet.command")


def _run(arguments: list[str]) -> int:
    text = os.environ.pop(_SETTINGS, None)
    if text is not None:
        from neurond.settings import Settings

        return _serve(Settings.from_json(text))
    from neurond.startup.configuration import settings_from

    settings = settings_from(arguments)
    if settings is None:
        return 0
    if not settings.exit_with_parent:  # a daemon of one command ends soon, so a fast start counts more than memory
        os.environ[_SETTINGS] = settings.to_json()
        # -P keeps Python from importing modules of the current directory.
        command = [sys.executable, *_interpreter_flags(), "-P", "-m", "neurond", *arguments]
        os.execv(sys.executable, command)  # noqa: S606
    return _serve(settings)


def _serve(settings: Settings) -> int:
    if settings.metrics_listen is None and settings.otlp_endpoint is None:
        from neurontools.util.light_imports import import_without

        import_without("asyncio", "ssl")
    import asyncio

    from neurond.daemon import Daemon
    from neurond.system.lifecycle import configure_logging, timed_loop

    configure_logging(settings.log_level)

    async def run() -> None:
        await Daemon(settings).run()

    with asyncio.Runner(loop_factory=timed_loop) as runner:
        runner.run(run())
    return 0


def _interpreter_flags() -> list[str]:
    import subprocess

    return subprocess._args_from_interpreter_flags()  # type: ignore[attr-defined,no-any-return]  # noqa: SLF001


if __name__ == "__main__":
    main()
