"""Interfaces to the operating system: processes, vCPUs, memory, kernel log, clocks and service manager."""
