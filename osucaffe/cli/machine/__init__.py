"""The commands about this machine: its devices, communication speed."""
