"""Sources of device state: a simulated instance, or the driver's sysfs tree."""
