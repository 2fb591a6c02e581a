"""The page of who uses what: sums by user, and the processes that have ended."""
