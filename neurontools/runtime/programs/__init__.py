"""From a recorded graph to a program: compiling, the cache on disk, precision, execution as a line of code."""
