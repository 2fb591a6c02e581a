"""A TLS context that follows its files, with real handshakes; whose certificate it is, and what that one may see."""

from __future__ import annotations

import logging
import ssl
from dataclasses import replace
from pathlib import Path

import pytest

from neurontools.net.tls import Role, ServerFiles, ServerTls, Subjects, checked_name, subject_names
from neurontools.util.errors import EXIT_USAGE, UserError
from tests.harness.certificates import Authority, needs_openssl
from tests.harness.waiting import wait_until

pytestmark = needs_openssl


def served(tls: ServerTls, trusting: Path, certificate: tuple[Path, Path] | None = None) -> str:
    """The serial number of the certificate that a client sees; SSLError of either side."""
    client_context = ssl.create_default_context(cafile=str(trusting))
    if certificate is not None:
        client_context.load_cert_chain(*certificate)
    to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
    client = client_context.wrap_bio(to_client, to_server, server_hostname="127.0.0.1")
    server = tls.context.wrap_bio(to_server, to_client, server_side=True)
    for _ in range(4):
        for side in (client, server):
            try:
                side.do_handshake()
            except ssl.SSLWantReadError:
                continue
    found = client.getpeercert()
    assert found is not None
    return str(found["serialNumber"])


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    return Authority(tmp_path)


def files_of(authority: Authority, certificate: tuple[Path, Path]) -> ServerFiles:
    return ServerFiles(str(certificate[0]), str(certificate[1]), str(authority.file))


def test_files_that_are_renamed_into_place_are_taken(
    authority: Authority, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    certificate, key = authority.sign("server")
    tls = ServerTls(ServerFiles(str(certificate), str(key)), "tls.")
    before = served(tls, authority.file)
    assert not tls.reload(), "nothing has changed"
    renewed, renewed_key = authority.sign("renewed")
    renewed_key.replace(key)
    assert not tls.reload()
    assert "tls.certificate: " in caplog.text
    assert caplog.text.count("the old contents stay in use") == 1
    assert not tls.reload(), "which is told once"
    assert caplog.text.count("the old contents stay in use") == 1
    assert served(tls, authority.file) == before
    renewed.replace(certificate)
    assert tls.reload()
    assert served(tls, authority.file) != before


def test_a_directory_whose_link_is_swapped_is_taken_as_a_whole(authority: Authority, tmp_path: Path) -> None:
    for name in ("first", "second"):
        volume = tmp_path / name
        volume.mkdir()
        for made, kept in zip(authority.sign(name), ("tls.crt", "tls.key"), strict=True):
            made.rename(volume / kept)
    link = tmp_path / "..data"
    link.symlink_to("first")
    for kept in ("tls.crt", "tls.key"):
        (tmp_path / kept).symlink_to(f"..data/{kept}")
    tls = ServerTls(ServerFiles(str(tmp_path / "tls.crt"), str(tmp_path / "tls.key")), "tls.")
    before = served(tls, authority.file)
    (tmp_path / "..new").symlink_to("second")
    (tmp_path / "..new").rename(link)
    assert tls.reload()
    assert served(tls, authority.file) != before


def test_a_file_that_is_half_written_leaves_what_was_there(authority: Authority, tmp_path: Path) -> None:
    files = files_of(authority, authority.sign("server"))
    viewer = authority.sign("viewer")
    tls = ServerTls(files, "tls.")
    trusted = tmp_path / "trusted.crt"
    trusted.write_bytes(authority.file.read_bytes())
    before = served(tls, trusted, viewer)
    for part in ("certificate", "key", "client_ca"):
        file = Path(getattr(files, part))
        whole = file.read_bytes()
        for share in (0.0, 0.3, 0.9):
            file.write_bytes(whole[: int(len(whole) * share)])
            assert not tls.reload()
            assert served(tls, trusted, viewer) == before
        file.write_bytes(whole)
        assert tls.reload()
        assert served(tls, trusted, viewer) == before


def test_an_authority_that_is_taken_away_signs_for_nobody_any_more(authority: Authority, tmp_path: Path) -> None:
    next_one = Authority(tmp_path, "next")
    trusted = tmp_path / "trusted.crt"
    trusted.write_bytes(authority.file.read_bytes() + next_one.file.read_bytes())
    certificate, key = authority.sign("server")
    tls = ServerTls(ServerFiles(str(certificate), str(key), str(trusted)), "tls.")
    old, new = authority.sign("old"), next_one.sign("new")
    assert served(tls, authority.file, old)
    assert served(tls, authority.file, new)
    trusted.write_bytes(next_one.file.read_bytes())
    assert tls.reload()
    assert served(tls, authority.file, new)
    with pytest.raises(ssl.SSLError, match=r"(?i)certificate verify failed"):
        served(tls, authority.file, old)


def test_a_list_of_revoked_certificates_is_read_again_and_must_be_fresh(
    authority: Authority, caplog: pytest.LogCaptureFixture
) -> None:
    files = replace(files_of(authority, authority.sign("server")), client_crl=str(authority.write_crl()))
    lost, kept = authority.sign("lost"), authority.sign("kept")
    tls = ServerTls(files, "tls.")
    assert served(tls, authority.file, lost)
    authority.revoke(lost[0])
    crl = authority.write_crl()
    assert tls.reload()
    assert served(tls, authority.file, kept)
    with pytest.raises(ssl.SSLError, match=r"(?i)certificate revoked"):
        served(tls, authority.file, lost)
    whole = crl.read_bytes()
    for damaged in (b"", whole[:100], authority.file.read_bytes()):
        crl.write_bytes(damaged)
        assert not tls.reload()
        with pytest.raises(ssl.SSLError, match=r"(?i)certificate revoked"):
            served(tls, authority.file, lost)
    assert f"tls.client_crl: {crl}: holds no CRL; give the PEM file of openssl ca -gencrl" in caplog.text
    authority.write_crl(seconds=1)
    assert tls.reload()

    def is_refused() -> bool:
        try:
            served(tls, authority.file, kept)
        except ssl.SSLError as error:
            return "CRL has expired" in str(error)
        return False

    wait_until(is_refused)  # a list that nobody renews could hide a revocation


@pytest.mark.parametrize("is_separate", [True, False])
def test_a_key_that_others_may_read_is_refused(authority: Authority, *, is_separate: bool) -> None:
    certificate, key = authority.sign("server")
    if is_separate:
        files = ServerFiles(str(certificate), str(key))
    else:
        certificate.write_bytes(certificate.read_bytes() + key.read_bytes())
        key, files = certificate, ServerFiles(str(certificate))
    key.chmod(0o640)
    ServerTls(files, "tls.")
    key.chmod(0o644)
    with pytest.raises(UserError) as refused:
        ServerTls(files, "tls.")
    assert str(refused.value) == (
        f"tls.{'key' if is_separate else 'certificate'}: {key}: holds a private key and has the mode 0644; "
        "take it away from others (chmod o=, or defaultMode: 0440 of a Kubernetes secret)"
    )
    assert refused.value.exit_code == EXIT_USAGE


def test_what_is_wrong_at_first_is_told_in_a_line(authority: Authority, tmp_path: Path) -> None:
    certificate, key = map(str, authority.sign("server"))
    (tmp_path / "empty").touch(0o600)
    empty, absent = str(tmp_path / "empty"), str(tmp_path / "absent")
    for files, told in (
        (ServerFiles(absent, key), f"x.certificate: {absent}: No such file or directory; give a readable file"),
        (ServerFiles(certificate, absent), f"x.key: {absent}: No such file or directory; give a readable file"),
        (ServerFiles(certificate, str(tmp_path)), f"x.key: {tmp_path}: Is a directory; give a readable file"),
        (ServerFiles(certificate, str(tmp_path / "authority.key")), "key values mismatch; give PEM files that fit"),
        (ServerFiles(certificate, key, empty), f"x.client_ca: {empty}: no certificate or crl found; give PEM files"),
    ):
        with pytest.raises(UserError) as refused:
            ServerTls(files, "x.")
        assert told in str(refused.value)
        assert "\n" not in str(refused.value)


def test_names_are_uris_and_dns_names_alone() -> None:
    certificate = {
        "subject": ((("commonName", "admin.example.org"),),),
        "subjectAltName": (
            ("DNS", "Viewer.Example.org"),
            ("URI", "spiffe://example.org/Viewer"),
            ("IP Address", "10.0.0.1"),
            ("email", "a@example.org"),
        ),
    }
    assert subject_names(certificate) == ("viewer.example.org", "spiffe://example.org/Viewer")
    assert subject_names({}) == ()


def test_the_most_that_a_name_has_counts() -> None:
    subjects = Subjects([checked_name("Viewer.example.org")], ["spiffe://example.org/admin"])
    assert subjects.widest_role(["other", "viewer.example.org"]) == ("viewer.example.org", Role.SUMMARY)
    admin = "spiffe://example.org/admin"
    assert subjects.widest_role(["viewer.example.org", admin]) == (admin, Role.FULL)
    assert subjects.widest_role(["spiffe://example.org/Admin"]) is None
    assert subjects.widest_role(["x.viewer.example.org", "viewer.example.org.evil.org"]) is None
    assert subjects.widest_role([]) is None


@pytest.mark.parametrize(
    "text", ["", "*.example.org", "a b", "a..b", ".", "spiffe://", "://x", "spiffe://a b", "x" * 64, "a." * 127 + "ab"]
)
def test_what_can_be_no_name_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"is not a (DNS name|URI); write one such as"):
        checked_name(text)
