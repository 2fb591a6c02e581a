"""Injected faults: the kinds of faults and their symptoms, and the requests to inject them."""
