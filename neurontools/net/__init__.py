"""Servers on sockets: accepting connections, TLS, and HTTP on h11."""
