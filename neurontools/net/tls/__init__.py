"""TLS on either side: certificates from files that may be renewed at any time, and what the names in them may see."""
