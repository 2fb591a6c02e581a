"""The file of the token that says who may see the pages."""

from __future__ import annotations

from pathlib import Path

import pytest

from neurontools.http.token_file import read_token
from neurontools.tls.files import FileProblem


def test_a_token_is_short_and_of_ascii(tmp_path: Path) -> None:
    file = tmp_path / "token"
    file.write_text(" s3cret\n", "utf-8")
    assert read_token(str(file)) == b"s3cret"
    for content in (b"", b" ", b"x" * 5000, "gehe\u00efm".encode()):
        file.write_bytes(content)
        with pytest.raises(FileProblem, match="no token; write one line of ASCII"):
            read_token(str(file))
    file.unlink()
    with pytest.raises(FileProblem, match=r"bearer_token_file: .*: No such file or directory; give a readable file"):
        read_token(str(file))
