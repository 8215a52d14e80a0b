"""What people watch a running job by: Prometheus metrics of one node's ranks."""
