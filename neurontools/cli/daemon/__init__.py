"""Connections of commands to the monitor daemon, and private daemons."""
