"""The past that live views look at: where it comes from, its moments, its events and its curves."""
