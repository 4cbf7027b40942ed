"""Run all: `python -m benchmarks`, or some: `python -m benchmarks draws steps preparation`."""

from __future__ import annotations

import importlib
import sys

import jax

ALL = ("preparation", "draws", "steps", "samplers", "automatic", "store")

if __name__ == "__main__":
    print(f"jax {jax.__version__} on {jax.devices()[0].platform}, best of several interleaved calls")
    for name in sys.argv[1:] or ALL:
        importlib.import_module(f"benchmarks.{name}").main()
