"""What /proc tells of processes beside their use of devices: this one and those around another."""
