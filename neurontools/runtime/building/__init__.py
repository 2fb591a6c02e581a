"""The background process that compiles a graph to machine code with torch's inductor and a C++ compiler."""
