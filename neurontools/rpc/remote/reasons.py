"""Why a daemon could not be reached over TLS, in words: what it is, and what to look at next."""

from __future__ import annotations

import socket
import ssl

# X509_V_ERR_... of OpenSSL (x509_vfy.h), of the certificate that the server shows.
_NOT_VALID_YET, _EXPIRED, _HOST_NAME, _ADDRESS = 9, 10, 62, 64
_NOT_TRUSTED = frozenset((18, 19, 20, 21, 24))
_OF_ITS_CERTIFICATE = {
    _NOT_VALID_YET: "its certificate is not valid yet; see whether the clock is off, here or there",
    _EXPIRED: "its certificate has expired; renew it, or see whether the clock here is off",
    _HOST_NAME: "its certificate is for other names; ask by one of them, or have this one added",
    _ADDRESS: "its certificate is for other names and addresses; ask by one of them, or have this one added",
}
# What the server says of the client's certificate, and of the handshake: the end of the reason OpenSSL gives.
_ALERTS = (
    ("ALERT_UNKNOWN_CA", "it doesn't trust who signed the certificate shown here; see its tls.client_ca"),
    ("ALERT_CERTIFICATE_EXPIRED", "the certificate shown here has expired; renew it, or see whether its clock is off"),
    ("ALERT_CERTIFICATE_REQUIRED", "it wants a certificate; give --tls-cert and --tls-key"),
    ("ALERT_BAD_CERTIFICATE", "it refuses the certificate shown here; its log says why (is a clock off?)"),
    ("ALERT_CERTIFICATE_UNKNOWN", "it refuses the certificate shown here; its log says why (is a clock off?)"),
    ("ALERT_PROTOCOL_VERSION", "it speaks another version of TLS; update the older of both sides"),
    ("UNSUPPORTED_PROTOCOL", "it speaks another version of TLS; update the older of both sides"),
)
_NO_TLS = frozenset(("WRONG_VERSION_NUMBER", "HTTP_REQUEST", "PACKET_LENGTH_TOO_LONG", "RECORD_LAYER_FAILURE"))
NOT_GRPC = "it speaks TLS, but no gRPC; is this the port of neurond --listen?"


def reason(error: Exception) -> str:
    """Why this ended an attempt to connect."""
    if isinstance(error, ssl.SSLCertVerificationError):
        if error.verify_code in _NOT_TRUSTED:
            return "who signed its certificate is not trusted here; give that authority with --tls-ca"
        otherwise = f"its certificate can't be trusted: {error.verify_message}"
        return _OF_ITS_CERTIFICATE.get(error.verify_code, otherwise)
    if isinstance(error, ssl.SSLEOFError):
        return "it ended the TLS handshake; is this the port of neurond --listen?"
    if isinstance(error, ssl.SSLError):
        return _of_tls(error.reason or "")
    if isinstance(error, TimeoutError):
        return "no answer in time; is a firewall between?"
    if isinstance(error, socket.gaierror):
        return f"its name has no address: {error.strerror}"
    if isinstance(error, ConnectionRefusedError):
        return "connection refused; is its neurond started with --listen?"
    if isinstance(error, ConnectionResetError):
        return "it reset the connection; is this the port of neurond --listen?"
    if isinstance(error, OSError):
        return (error.strerror or str(error)).lower()
    return str(error)


def _of_tls(name: str) -> str:
    for ending, told in _ALERTS:
        if name.endswith(ending):
            return told
    if name in _NO_TLS:
        return "it speaks no TLS; is this the port of neurond --listen?"
    return f"TLS failed: {name.replace('_', ' ').lower() or 'no reason given'}"
