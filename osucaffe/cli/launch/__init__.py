"""Starting and configuring several ranks for a command: launching, binding,
restarts, MPS, parameter servers, the profile of communication."""
