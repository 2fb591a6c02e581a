"""Fleets: a summary of about a kilobyte per host, and the feeds that collect the summaries."""
