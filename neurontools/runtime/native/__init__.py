"""Machine code of graphs for --optlevel 3: its segments, its archive, the background build, loading and execution."""
