"""Reads what driver and kernel show: the sysfs tree, /proc, the kernel log, the runtime's environment variables."""
