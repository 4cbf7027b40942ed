"""Communities in networks: mini-batches of nodes and of their pairs."""
