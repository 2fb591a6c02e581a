"""The file of the token that says who may see the pages: how it is read, and what is wrong with it."""

from __future__ import annotations

from pathlib import Path

from neurontools.net.tls.files import FileProblem, told

_LONGEST_TOKEN_BYTES = 4096


def read_token(file: str) -> bytes:
    """The token in a file; FileProblem."""
    with told("bearer_token_file", file), Path(file).open("rb") as opened:
        content = opened.read(_LONGEST_TOKEN_BYTES + 1)
    token = content.strip()
    if not token or len(content) > _LONGEST_TOKEN_BYTES or not token.isascii():
        raise FileProblem(f"bearer_token_file: {file}: no token; write one line of ASCII")
    return token
