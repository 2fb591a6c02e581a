"""Tests whether devices and links are good enough for a job: the tests, their results and the workload."""
