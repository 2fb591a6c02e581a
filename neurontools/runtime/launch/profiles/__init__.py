"""Profiles of this process: the one that its environment asks for, and those that somebody outside asks for."""
