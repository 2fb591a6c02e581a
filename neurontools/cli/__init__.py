"""The commands: parse, ask the monitor daemon, print. What they import decides how fast they start."""
