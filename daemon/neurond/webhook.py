"""Posts the JSON document on standard input to a webhook. The daemon starts one such process per post.

Thus the daemon itself needs neither TLS nor an HTTP client, and it ends a hanging request by killing the process. The
argument is the path of the file with the URL, because the URL may contain a secret and other users can read arguments.
Redirects are not followed.
"""

from __future__ import annotations

import re
import sys
from typing import Any

from neurontools.net.secret_files import FileProblem, read_secret

_URL = re.compile(r"https?://[^\s/]+")
_SOCKET_SECONDS = 600.0  # long timeout, because the daemon limits the time of the whole process


def main() -> int:
    """Posts the document. Returns 0 if the response status is 2xx, else 1."""
    # Imported here because the daemon, which imports this module for `read_webhook_url`, does not need urllib.
    import urllib.error
    import urllib.request

    try:
        url = read_webhook_url(sys.argv[1])
    except FileProblem as problem:
        return _print_failure(str(problem))

    class NoRedirection(urllib.request.HTTPRedirectHandler):
        def redirect_request(self, *_arguments: Any) -> None:
            """Makes every redirect an error."""

    request = urllib.request.Request(  # noqa: S310 - the configuration admits http and https alone
        url,
        data=sys.stdin.buffer.read(),
        headers={"Content-Type": "application/json", "User-Agent": "neurond"},
        method="POST",
    )
    try:
        with urllib.request.build_opener(NoRedirection).open(request, timeout=_SOCKET_SECONDS):
            return 0
    except urllib.error.HTTPError as error:
        with error:  # it holds the connection
            return _print_failure(f"status {error.code}")
    except urllib.error.URLError as error:
        return _print_failure(str(error.reason))
    except (OSError, ValueError) as error:
        return _print_failure(type(error).__name__)


def read_webhook_url(file: str) -> str:
    """Returns the URL in a file. Raises FileProblem if others can read the file, or it holds no URL."""
    url = read_secret("actions.webhook_url_file", file, "the URL of a webhook")
    if not _URL.match(url):
        raise FileProblem(
            f"actions.webhook_url_file: {file}: holds no URL; write one such as https://alerts.example.org/neuron"
        )
    return url


def _print_failure(cause: str) -> int:
    printable = "".join(character if character.isprintable() else "?" for character in cause[:400])
    sys.stderr.write(f"neurond: the webhook did not accept a finding: {printable}\n")
    return 1


if __name__ == "__main__":
    sys.exit(main())
