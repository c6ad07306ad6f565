"""How options are declared: once, as fields of dataclasses, which the command line reads."""
