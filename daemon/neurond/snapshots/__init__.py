"""From what is read and reported to one frozen snapshot a tick, and the recent past."""
