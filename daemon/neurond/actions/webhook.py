"""Where the process that posts finds its URL; apart, so that the daemon doesn't load an HTTP client with it."""

from __future__ import annotations

WEBHOOK_VARIABLE = "_NEUROND_WEBHOOK"
