"""Shared parts of the commands: options, --help, --version and completion."""
