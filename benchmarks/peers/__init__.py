"""Other libraries, each in its own environment, on the same problem."""
