"""What all commands share: options, --help, --version, completion, output, and how they end."""
