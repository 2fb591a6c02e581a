"""`neuron-profile report DIR -o FILE.html`."""

from __future__ import annotations

from pathlib import Path

from neurontools.cli.line.frame import write_document
from neurontools.cli.line.telling import tell
from neurontools.cli.profile import options
from neurontools.cli.profile.reading import Reading
from neurontools.util.errors import EXIT_FAILURE, EXIT_USAGE, UserError
from neurontools.util.terminal import escape_controls
from neurontools.util.units import bytes_text
from neurontools.views.profile_web_page import profile_web_page


def write(where: str, given: dict[str, str]) -> int:
    """Writes the page; the exit code, 1 when a profile is not whole."""
    path = given.get("output")
    if path is None:
        raise UserError("report needs -o FILE.html; - is standard output", EXIT_USAGE)
    reading = Reading()
    content = profile_web_page(reading.report(where, options.ranks(given))).encode("utf-8", "replace")
    if path == "-":
        write_document(content)
        return reading.exit_code
    try:
        Path(path).write_bytes(content)
    except OSError as error:
        told = f"--output {escape_controls(path[:200])}: {error.strerror}; name a file that can be written"
        raise UserError(told, EXIT_FAILURE) from error
    tell(f"neuron-profile: {path}: {bytes_text(len(content))}; open it in any browser")
    return reading.exit_code
