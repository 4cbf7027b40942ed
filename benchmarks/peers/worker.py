"""Runs in a peer's environment: `worker.py MODULE DATA SIZE STEPS STEP_SIZE`.

Takes the steps once per line on standard input.
"""

import importlib
import os
import sys

import numpy as np

if __name__ == "__main__":
    module, path, size, steps, step_size = sys.argv[1:]
    answers = os.fdopen(os.dup(1), "w")  # the output of the libraries goes to stderr
    os.dup2(2, 1)
    with np.load(path) as data:
        take_steps = importlib.import_module(module).make(
            data["x"], data["y"], int(size), int(steps), float(step_size)
        )
    take_steps()
    print("ready", file=answers, flush=True)
    for _ in sys.stdin:
        take_steps()
        print("done", file=answers, flush=True)
