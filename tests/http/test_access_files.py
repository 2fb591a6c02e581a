"""What is wrong with the files that say who may see the pages."""

from __future__ import annotations

import ssl
from pathlib import Path

import pytest

from neurontools.http.access_files import AccessFiles, FileProblem, load_certificate, problems, read_token
from tests.harness.certificates import Authority, needs_openssl


def test_without_files_nothing_is_wrong() -> None:
    assert problems(AccessFiles()) == []


@needs_openssl
def test_files_that_fit_have_no_problem(tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    certificate, key = map(str, authority.sign("server"))
    token = tmp_path / "token"
    token.write_text(" s3cret\n", "utf-8")
    assert problems(AccessFiles(certificate, key, str(authority.file), str(token))) == []
    assert read_token(str(token)) == b"s3cret"


@needs_openssl
def test_each_file_that_is_wrong_is_told_in_a_line(tmp_path: Path) -> None:
    certificate, key = map(str, Authority(tmp_path).sign("server"))
    empty = tmp_path / "empty"
    empty.write_text(" \n", "utf-8")
    wrong = str(empty)
    found = problems(AccessFiles(certificate, wrong, wrong, wrong))
    assert [line.partition(": ")[0] for line in found] == ["tls_certificate", "tls_client_ca", "bearer_token_file"]
    assert [line.rpartition("; ")[2] for line in found] == [
        "give PEM files that fit",
        "give PEM files that fit",
        "write one line of ASCII",
    ]
    assert wrong in found[1]
    assert wrong in found[2]
    absent = str(tmp_path / "absent")
    assert problems(AccessFiles(certificate, absent, None, absent)) == [
        f"tls_key: {absent}: No such file or directory; give a readable file",
        f"bearer_token_file: {absent}: No such file or directory; give a readable file",
    ]
    assert problems(AccessFiles(certificate, key)) == []


@needs_openssl
def test_a_certificate_that_does_not_fit_leaves_the_one_before(tmp_path: Path) -> None:
    certificate, key = map(str, Authority(tmp_path).sign("server"))
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    load_certificate(context, certificate, key)
    with pytest.raises(FileProblem):
        load_certificate(context, certificate, str(tmp_path / "authority.key"))
    served, asked = ssl.MemoryBIO(), ssl.MemoryBIO()
    client = ssl.create_default_context(cafile=str(tmp_path / "authority.crt"))
    client.check_hostname = False
    sides = (
        client.wrap_bio(served, asked, server_hostname="server"),
        context.wrap_bio(asked, served, server_side=True),
    )
    for _ in range(4):
        for side in sides:
            try:
                side.do_handshake()
            except ssl.SSLWantReadError:
                continue
    assert sides[0].version() is not None


def test_a_token_is_short_and_of_ascii(tmp_path: Path) -> None:
    file = tmp_path / "token"
    for content in (b"", b" ", b"x" * 5000, "gehe\u00efm".encode()):
        file.write_bytes(content)
        with pytest.raises(FileProblem, match="no token"):
            read_token(str(file))
