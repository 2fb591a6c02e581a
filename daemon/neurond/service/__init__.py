"""The gRPC API and its sockets."""
