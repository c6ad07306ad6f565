"""The independent reference of nets, in float64."""
