"""Who is at the other end of a connection, what they have open, and what they may still open."""
