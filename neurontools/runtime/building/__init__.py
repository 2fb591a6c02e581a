"""The process that makes machine code of a graph with torch's inductor and a C++ compiler, beside the training."""
