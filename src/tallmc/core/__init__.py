"""Utilities of every layer: errors, arrays, random numbers, pytrees, linear maps."""
