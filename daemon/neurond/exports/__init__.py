"""Exporters of snapshots: to Prometheus, to OpenTelemetry, and as a copy of the driver's sysfs tree."""
