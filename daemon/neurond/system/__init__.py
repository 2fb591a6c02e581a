"""What the operating system knows: processes, vCPUs and memory, and who started the daemon."""
