"""What the certificate of a client lets it see."""

from __future__ import annotations

import ssl
from pathlib import Path

from neurontools.http.access import Access
from neurontools.http.request import Request
from neurontools.http.response import Response
from neurontools.http.site import Page
from neurontools.tls.server import ServerFiles, ServerTls
from neurontools.tls.subjects import Role, Subjects
from tests.harness.certificates import Authority, needs_openssl
from tests.harness.http_server import Serve, Served


def told(request: Request) -> Response:
    return Response(f"{request.role}".encode())


PAGES = {"/": Page(told), "/short": Page(told, role=Role.SUMMARY), "/open": Page(told, is_open=True)}


def answer(served: Served, path: str) -> tuple[int, str]:
    reply = served.get(path)
    return reply.status, reply.body.decode("ascii")


@needs_openssl
def test_pages_are_for_roles_and_know_that_of_the_reader(serve: Serve, tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    certificate, key = map(str, authority.sign("server"))
    tls = ServerTls(ServerFiles(certificate, key, str(authority.file)), "tls.")
    served = serve(PAGES, Access(tls, subjects=Subjects(["viewer"], ["admin"])))

    def become(*names: str) -> None:
        served.context = ssl.create_default_context(cafile=str(authority.file))
        served.context.load_cert_chain(*authority.sign("reader", *names))

    become("DNS:admin")
    assert answer(served, "/") == (200, "full")
    assert answer(served, "/short") == (200, "full")
    become("DNS:viewer")
    assert answer(served, "/") == (403, "this page is for the role full, and your certificate has summary\n")
    assert answer(served, "/short") == (200, "summary")
    become("DNS:stranger")
    assert answer(served, "/short") == (403, "no name of your certificate is allowed here\n")
    assert answer(served, "/open") == (200, "None")


def test_without_names_everybody_sees_all(serve: Serve) -> None:
    assert answer(serve(PAGES), "/") == (200, "full")
