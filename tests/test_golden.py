"""Draws of fixed seeds are those of `golden.json`: no change of the code changes a draw unseen.

On the processor that the file names, all bits of a run agree. Elsewhere another compiler target
rounds otherwise, and only the end of the first chain is compared. Float32 has 24 bits, a run of
83 steps adds up some hundred roundings of 6e-8, and the file keeps five digits: 1e-4 of the largest
coordinate. Where a decision depends on a rounding (an accept step, the number of rows of a step), a
chain may part from its twin, so methods that decide are compared on the named processor only.
"""

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from problems import slow_after

GOLDEN = Path(__file__).with_name("golden.py")
WANTED = json.loads(GOLDEN.with_suffix(".json").read_text())

FAST = ["method sgld_cv_ps", "gradient saga", "method sgld", "dynamics splitting"]
"""Cheap runs: streams, weights and an anchor, a table that the chain carries, take, momentum."""

PROGRAM = """
import json, sys
sys.path[:0] = [sys.argv[1]]
import golden
found = {case: golden.digest(case) for case in sys.argv[2:]}
print(json.dumps({"processor": golden.processor(), "runs": found}))
"""

TOLERANCE = 1e-4


def digests(cases):
    """The digests of runs in a process of its own, with JAX's default precision and options."""
    environment = os.environ | {"JAX_ENABLE_X64": "0", "XLA_FLAGS": ""}
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, str(GOLDEN.parent), *cases],
        capture_output=True,
        text=True,
        check=False,
        env=environment,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


def check(cases):
    found = digests(cases)
    same_processor = found["processor"] == WANTED["processor"]
    wrong = {}
    for case in cases:
        run, wanted = found["runs"][case], WANTED["runs"][case]
        if same_processor and run["sha256"] != wanted["sha256"]:
            wrong[case] = (run, wanted)
        elif not same_processor and case in FAST:
            last = np.array(wanted["last"])
            error = np.abs(np.array(run["last"]) - last).max()
            if error > TOLERANCE * np.abs(last).max():
                wrong[case] = (run, wanted)
    assert wrong == {}


@pytest.mark.parametrize("case", slow_after(1, FAST[:2]))
def test_draws_of_two_methods_are_golden(case):
    check([case])


@pytest.mark.slow
def test_draws_of_every_method_part_and_model_are_golden():
    check([case for case in WANTED["runs"] if case not in FAST[:2]])
