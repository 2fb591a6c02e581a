"""What is installed and found on a host, what is wrong with that, and a bundle of it for a report."""
