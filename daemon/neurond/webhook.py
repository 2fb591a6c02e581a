"""Posts the JSON document on standard input to a webhook. The daemon starts one such process per post.

Thus the daemon itself needs neither TLS nor an HTTP client, and it ends a hanging request by killing the process. The
URL is in an environment variable, because it may contain a secret and other users can read arguments. Redirects are
not followed.
"""

from __future__ import annotations

import os
import sys
from typing import Any

WEBHOOK_VARIABLE = "_NEUROND_WEBHOOK"

_SOCKET_SECONDS = 600.0  # long timeout, because the daemon limits the time of the whole process


def main() -> int:
    """Posts the document. Returns 0 if the response status is 2xx, else 1."""
    # Imported here because the daemon, which imports this module for WEBHOOK_VARIABLE, does not need urllib.
    import urllib.error
    import urllib.request

    class NoRedirection(urllib.request.HTTPRedirectHandler):
        def redirect_request(self, *_arguments: Any) -> None:
            """Makes every redirect an error."""

    request = urllib.request.Request(  # noqa: S310 - the configuration admits http and https alone
        os.environ.pop(WEBHOOK_VARIABLE),
        data=sys.stdin.buffer.read(),
        headers={"Content-Type": "application/json", "User-Agent": "neurond"},
        method="POST",
    )
    try:
        with urllib.request.build_opener(NoRedirection).open(request, timeout=_SOCKET_SECONDS):
            return 0
    except urllib.error.HTTPError as error:
        return _print_failure(f"status {error.code}")
    except urllib.error.URLError as error:
        return _print_failure(str(error.reason))
    except (OSError, ValueError) as error:
        return _print_failure(type(error).__name__)


def _print_failure(cause: str) -> int:
    printable = "".join(character if character.isprintable() else "?" for character in cause[:200])
    sys.stderr.write(f"neurond: the webhook did not accept a finding: {printable}\n")
    return 1


if __name__ == "__main__":
    sys.exit(main())
