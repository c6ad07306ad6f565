"""The job: its processes and hosts, and that they end together."""
