"""What other engines are told: Prometheus, OpenTelemetry, readers of the driver's tree."""
