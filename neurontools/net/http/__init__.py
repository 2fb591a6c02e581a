"""The HTTP server of the suite: pages are functions of a request to a response, everything else is in here."""
