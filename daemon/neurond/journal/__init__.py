"""The log of ended processes and the audit log: how their records are made, and their files."""
