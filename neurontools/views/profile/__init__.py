"""The report on a profile, as lines for a terminal, as data, and as a page of HTML (`web`)."""
