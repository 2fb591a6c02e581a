"""The report as one page of HTML that needs nothing else: no script, no network, no resource of anybody."""
