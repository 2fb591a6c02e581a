"""The daemon's own pages for browsers, beside its metrics: where their snapshots come from, and who sees what."""
