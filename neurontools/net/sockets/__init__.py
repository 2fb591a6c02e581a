"""Listening on sockets: where, taking connections in whatever happens, and who may stay."""
