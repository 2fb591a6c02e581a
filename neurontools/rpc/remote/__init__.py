"""Daemons of other hosts that serve over TLS: each gets a socket of this host, behind which TLS and TCP begin."""
