"""Machine code of graphs for --optlevel 3: segments, archives, the background build, loading and execution."""
