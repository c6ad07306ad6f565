"""Owns the independent reference of nets, in float64."""
