"""The log of ended processes and the audit log: making their records, and writing their files."""
