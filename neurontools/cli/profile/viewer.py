"""`neuron-profile serve DIR`: one of the viewers that others make, in the place of this command."""

from __future__ import annotations

import os
import shutil
import socket
import sys
from pathlib import Path
from typing import NoReturn

from neurontools.cli.line.telling import tell
from neurontools.util.errors import EXIT_NOT_FOUND, UserError
from neurontools.util.terminal import escape_controls

_PLUGIN = ("plugins", "profile")  # below the directory of logs, where both viewers look


def serve(where: str, port: int) -> NoReturn:
    """Become xprof, or TensorBoard where that is all there is; UserError where there is nothing to show, or nobody to.

    Both are looked for beside this interpreter too, as in an environment that isn't activated.
    """
    shown = escape_controls(where[:200])
    directory = Path(where)
    if not directory.is_dir():
        raise UserError(
            f"{shown}: there is no such directory; give one that neuron-run --profile wrote", EXIT_NOT_FOUND
        )
    if not any(directory.joinpath(*_PLUGIN).glob("*/*.xplane.pb")):
        told = f"no {'/'.join(_PLUGIN)}/*/*.xplane.pb in it"
        raise UserError(f"{shown}: {told}; give a directory that neuron-run --profile wrote", EXIT_NOT_FOUND)
    own = Path(sys.executable).parent
    path = os.pathsep.join((os.environ.get("PATH", os.defpath), str(own)))
    for name, arguments, remark in (
        (
            "xprof",
            ("server", "--logdir", where, "--port", str(port), "--grpc_port", str(_free_port())),
            " (it listens on all addresses)",
        ),
        ("tensorboard", ("--logdir", where, "--port", str(port), "--host", "127.0.0.1"), ""),
    ):
        program = shutil.which(name, path=path)
        if program is not None:
            tell(f"neuron-profile: {name} at http://127.0.0.1:{port}/{remark}, until it is interrupted")
            os.execv(program, (name, *arguments))  # noqa: S606 - a program that the user installed
    raise UserError("neither xprof nor tensorboard is installed; pip install xprof, then try again", EXIT_NOT_FOUND)


def _free_port() -> int:
    """A port for what xprof asks itself by gRPC: of two of them the second fails at the usual one."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
    return port
