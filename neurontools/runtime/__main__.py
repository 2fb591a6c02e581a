"""`python -m neurontools.runtime script.py [arguments]`: runs a training script on simulated NeuronCores.

`-` is a script from standard input."""

from __future__ import annotations

import os
import sys

from neurontools.util.signals import die_on_interrupt, die_with_neuron_run, raise_on_interrupt

_USAGE = "usage: python -m neurontools.runtime [-m module | script.py | -] [arguments …]"


def main(arguments: list[str]) -> int:
    """Runs the script and returns the exit code; 2 for a wrong command line."""
    if not arguments or arguments[0] in ("-h", "--help"):
        print(_USAGE, file=sys.stdout if arguments else sys.stderr)
        return 0 if arguments else 2
    die_on_interrupt()
    die_with_neuron_run(os.environ)
    from pathlib import Path

    from neurontools.runtime.launch.install import (
        hide_launcher_frames,
        install_runtime,
        require_module,
        run_module,
        run_script,
        run_source,
    )
    from neurontools.runtime.reporting.daemon_connection import CoresUnavailable
    from neurontools.util.errors import UserError

    source = sys.stdin.buffer.read() if arguments[0] == "-" else None
    try:
        if arguments[0] == "-m":
            if len(arguments) < 2:
                print(_USAGE, file=sys.stderr)  # noqa: T201
                return 2
            require_module(arguments[1])
            install_runtime()
        elif source is not None:
            install_runtime(script=source)
        elif not Path(arguments[0]).is_file():
            print(f"neurontools.runtime: {arguments[0]}: no such file; give the path of a script", file=sys.stderr)  # noqa: T201
            return 2
        else:
            install_runtime(script=arguments[0])
    except CoresUnavailable as error:
        print(f"neurontools.runtime: NRT_{error.status.name}: {error}", file=sys.stderr)  # noqa: T201
        return 1
    except (UserError, ValueError) as error:
        print(f"neurontools.runtime: {error}", file=sys.stderr)  # noqa: T201
        return getattr(error, "exit_code", 1)
    from neurontools.runtime.torch_device.interrupts import resend_lost_interrupts

    raise_on_interrupt()
    resend_lost_interrupts()
    hide_launcher_frames()
    if arguments[0] == "-m":
        run_module(arguments[1], arguments[2:])
    elif source is not None:
        run_source(source, arguments[1:])
    else:
        run_script(arguments[0], arguments[1:])
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
