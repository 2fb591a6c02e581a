"""Exporters of snapshots: Prometheus and OpenMetrics metrics, neuron-monitor records, and Perfetto traces."""
