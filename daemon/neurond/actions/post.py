"""Posts the document on standard input to the URL in the environment: a process of its own for each webhook.

So the daemon needs no TLS and no HTTP client, and an answer that never ends is ended with the process. The URL is not
an argument, because everybody may read those and it may hold a secret. Redirections are not followed.
"""

from __future__ import annotations

import os
import sys
import urllib.error
import urllib.request
from typing import Any

from neurond.actions.webhook import WEBHOOK_VARIABLE

_SOCKET_SECONDS = 600.0  # the whole is bounded by who started us


class _NoRedirection(urllib.request.HTTPRedirectHandler):
    def redirect_request(self, *_arguments: Any) -> None:
        """Answers that lead elsewhere are errors."""


def main() -> int:
    """0 when the answer is 2xx."""
    request = urllib.request.Request(  # noqa: S310 - the configuration admits http and https alone
        os.environ.pop(WEBHOOK_VARIABLE),
        data=sys.stdin.buffer.read(),
        headers={"Content-Type": "application/json", "User-Agent": "neurond"},
        method="POST",
    )
    try:
        with urllib.request.build_opener(_NoRedirection).open(request, timeout=_SOCKET_SECONDS):
            return 0
    except urllib.error.HTTPError as error:
        return _failed(f"status {error.code}")
    except urllib.error.URLError as error:
        return _failed(str(error.reason))
    except (OSError, ValueError) as error:
        return _failed(type(error).__name__)


def _failed(cause: str) -> int:
    printable = "".join(character if character.isprintable() else "?" for character in cause[:200])
    sys.stderr.write(f"neurond: the webhook did not take a finding: {printable}\n")
    return 1


if __name__ == "__main__":
    sys.exit(main())
