"""The driver and the kernel: the sysfs tree, /proc, the kernel log and the environment of the original runtime."""
