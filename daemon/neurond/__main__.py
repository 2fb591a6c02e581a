"""The command `neurond`.

It runs in two stages in one process. The first stage validates flags and configuration, then replaces itself (execv)
with the second stage, which serves. Thus the daemon does not keep the memory that validation took.
"""

from __future__ import annotations

import os
import sys

from neurontools.util.command_lifecycle import run_command, run_module

_SETTINGS = "_NEUROND_SETTINGS"


def main() -> None:
    run_command("neurond", _run, is_service=True)


def fleet_sim() -> None:
    run_module("neurond.fleet.command")


def _run(arguments: list[str]) -> int:
    settings = os.environ.pop(_SETTINGS, None)
    if settings is not None:
        return _serve(settings)
    from neurond.startup.configuration import settings_from

    daemon_settings = settings_from(arguments)
    if daemon_settings is not None:
        os.environ[_SETTINGS] = daemon_settings.to_json()
        # -P keeps Python from importing modules of the current directory.
        command = [sys.executable, *_interpreter_flags(), "-P", "-m", "neurond", *arguments]
        os.execv(sys.executable, command)  # noqa: S606
    return 0


def _serve(text: str) -> int:
    from neurond.settings import Settings

    settings = Settings.from_json(text)
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
