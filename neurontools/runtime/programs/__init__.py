"""Programs of recorded graphs: compilation, the cache on disk, precision, and generated code."""
