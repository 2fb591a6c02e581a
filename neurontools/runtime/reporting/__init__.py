"""What a process tells the monitor daemon, and how. Pure Python, no torch."""
