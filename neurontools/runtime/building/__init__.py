"""The background process that builds machine code of a graph with torch's inductor and a C++ compiler."""
