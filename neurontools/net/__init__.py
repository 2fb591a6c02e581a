"""Servers on sockets: accepting connections, TLS, and HTTP with h11."""
