"""Metrics for engines that exist: what a snapshot looks like to Prometheus, OpenMetrics and OpenTelemetry."""
