"""What is installed of OpenTelemetry, which is an extra; imports nothing of it."""

from __future__ import annotations

from importlib.util import find_spec

from neurontools.util.errors import EXIT_USAGE, UserError

_PACKAGES = ("opentelemetry.sdk.metrics", "opentelemetry.exporter.otlp.proto.http")


def are_installed() -> bool:
    """Whether all that the sender needs is there."""
    return all(map(_is_installed, _PACKAGES))


def not_installed() -> UserError:
    """What a user is told who asks for OTLP without them, or where they can't be imported."""
    return UserError("--otlp-endpoint needs the OpenTelemetry SDK; install neurontools[otlp]", EXIT_USAGE)


def _is_installed(package: str) -> bool:
    try:
        return find_spec(package) is not None
    except ImportError:  # what it lies in is missing, or broken
        return False
