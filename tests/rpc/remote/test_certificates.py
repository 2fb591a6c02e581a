"""Which certificate is shown to daemons of other hosts."""

from __future__ import annotations

import ssl
from pathlib import Path

import pytest

from neurontools.errors import EXIT_USAGE, UserError
from neurontools.rpc.remote.certificates import client_tls
from tests.harness.certificates import Authority, needs_openssl

pytestmark = needs_openssl


def trusted(context: ssl.SSLContext) -> set[object]:
    return {str(found["subject"]) for found in context.get_ca_certs()}


def test_options_go_before_the_environment_and_that_before_the_directory(tmp_path: Path) -> None:
    authorities = {name: Authority(tmp_path, name) for name in ("one", "two", "three")}
    files = {name: authority.sign(f"of-{name}") for name, authority in authorities.items()}
    kept = tmp_path / "config" / "neurontools" / "tls"
    kept.mkdir(parents=True)
    for name, path in zip(("tls.crt", "tls.key", "ca.crt"), (*files["three"], authorities["three"].file), strict=True):
        (kept / name).symlink_to(path)
    environment = {"XDG_CONFIG_HOME": str(tmp_path / "config")}
    assert "three" in str(trusted(client_tls({}, environment).context()))
    environment |= {
        "NEURONTOOLS_TLS_CERT": str(files["two"][0]),
        "NEURONTOOLS_TLS_KEY": str(files["two"][1]),
        "NEURONTOOLS_TLS_CA": str(authorities["two"].file),
    }
    assert "two" in str(trusted(client_tls({}, environment).context()))
    given = {"tls-cert": str(files["one"][0]), "tls-key": str(files["one"][1])}
    assert "two" in str(trusted(client_tls(given, environment).context())), "the authorities are a thing of their own"
    assert "one" in str(trusted(client_tls(given | {"tls-ca": str(authorities["one"].file)}, environment).context()))


def test_what_is_missing_or_wrong_is_told_in_a_line(tmp_path: Path) -> None:
    certificate, key = map(str, Authority(tmp_path).sign("viewer"))
    environment = {"HOME": str(tmp_path)}
    (tmp_path / "open.key").write_bytes(Path(key).read_bytes())
    (tmp_path / "open.key").chmod(0o644)
    for given, told in (
        ({}, f"a certificate is needed to read over TLS; .* tls.crt, tls.key, ca.crt into {tmp_path}/.config/neuron"),
        ({"tls-key": key}, "--tls-key needs a certificate; give --tls-cert"),
        ({"tls-cert": "/absent"}, "TLS certificate: /absent: No such file or directory; give a readable file"),
        ({"tls-cert": certificate, "tls-key": str(tmp_path / "open.key")}, "TLS key: .* has the mode 0644; take it"),
        ({"tls-cert": certificate, "tls-key": key, "tls-ca": key}, "TLS ca: .*: no certificate or crl found; give PEM"),
    ):
        with pytest.raises(UserError, match=told) as refused:
            client_tls(given, environment)
        assert refused.value.exit_code == EXIT_USAGE
        assert "\n" not in str(refused.value)


def test_a_certificate_that_is_renewed_is_shown_the_next_time(tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    certificate, key = authority.sign("viewer")
    given = {"tls-cert": str(certificate), "tls-key": str(key), "tls-ca": str(authority.file)}
    tls = client_tls(given, {})
    before = tls.context()
    assert tls.context() is before
    renewed, renewed_key = authority.sign("renewed")
    renewed_key.replace(key)
    assert tls.context() is before, "the new key fits no certificate yet"
    renewed.replace(certificate)
    assert tls.context() is not before
