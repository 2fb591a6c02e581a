"""Commands: parse options, ask the monitor daemon, print. Their imports decide how fast they start."""
