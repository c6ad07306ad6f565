"""Owns how commands start several ranks and what these ranks are told: launching, binding,
restarts, MPS, parameter servers, the profile of communication."""
