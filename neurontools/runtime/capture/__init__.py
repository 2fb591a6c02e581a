"""Records operators into graphs, replays recorded steps, and runs other operators eagerly on the host."""
