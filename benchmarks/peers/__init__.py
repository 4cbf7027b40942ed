"""The other libraries of the field, each in an environment of its own, on one problem."""
