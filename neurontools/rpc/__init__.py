"""The gRPC API: its definition, the generated modules and the small client."""
