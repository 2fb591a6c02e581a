"""Machine code of graphs for --optlevel 3: segments, archives, the build in other processes, loading and execution."""
