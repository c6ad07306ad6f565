"""Training with parameter servers: the servers, their workers, and what is divided among
them."""
