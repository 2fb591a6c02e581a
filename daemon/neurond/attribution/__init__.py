"""Whose work a process is: container, pod, job."""
