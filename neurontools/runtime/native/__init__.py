"""Machine code of graphs, for --optlevel 3: which parts have it, what it is kept as, how it is loaded and run."""
