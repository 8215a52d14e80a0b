"""What is on each dashboard; build.py writes it as Grafana's JSON."""
