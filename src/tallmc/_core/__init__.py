"""Utilities for every layer: errors, arrays, random numbers, pytrees, linear maps."""
