"""The page of processes: its columns, filter and details."""
