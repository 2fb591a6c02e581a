"""The gRPC API: the generated messages and a small client."""
