"""How much of the library one call enters: files and functions, counted with `sys.setprofile`.

    python -m benchmarks.entered [--list]

A reader who follows a call has to visit these files. `--list` names them, with the functions.
"""

from __future__ import annotations

import sys
import threading
import warnings
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

import numpy as np
import pandas as pd

import tallmc

PACKAGE = Path(tallmc.__file__).parent
TARGETS = {"sample(posterior)": 45, "sample(posterior, sgld)": 30, "fit(formula, frame)": 65}


def entered(call: Callable[[], Any]) -> dict[str, set[str]]:
    """The functions of the library that a call enters, by file."""
    codes: set[CodeType] = set()

    def profile(frame: FrameType, event: str, _: object) -> None:
        if event == "call":
            codes.add(frame.f_code)

    threading.setprofile(profile)
    sys.setprofile(profile)
    try:
        call()
    finally:
        sys.setprofile(None)
        threading.setprofile(None)
    found = defaultdict(set)
    for code in codes:
        path = Path(code.co_filename)
        if path.is_relative_to(PACKAGE) and code.co_name != "<module>":
            found[str(path.relative_to(PACKAGE))].add(code.co_qualname)
    return dict(found)


def calls() -> dict[str, Callable[[], Any]]:
    """The calls that users make first, on a small logistic regression."""
    rng = np.random.default_rng(0)
    x = rng.normal(size=(2000, 3)).astype(np.float32)
    y = rng.random(2000) < 1 / (1 + np.exp(-x[:, 0]))
    posterior = tallmc.models.logistic_regression(x, y, prior_variance=10.0)
    frame = pd.DataFrame(x, columns=["a", "b", "c"]).assign(y=y.astype(int))
    fit = tallmc.fit  # imported on first access; imports do not count
    sgld = tallmc.methods.sgld(1e-4, batch_size=10)
    return {
        "sample(posterior)": lambda: tallmc.sample(posterior, progress=False),
        "sample(posterior, sgld)": lambda: tallmc.sample(posterior, sgld, progress=False),
        "fit(formula, frame)": lambda: fit(
            "y ~ a + b + c", frame, family="bernoulli", progress=False
        ),
    }


def main() -> None:
    """Print the counts beside the targets."""
    print(f"{'call':<26}{'files':>6}{'target':>8}{'functions':>11}")
    for name, call in calls().items():
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            found = entered(call)
        functions = sum(map(len, found.values()))
        print(f"{name:<26}{len(found):>6}{f'≤ {TARGETS[name]}':>8}{functions:>11}")
        if "--list" in sys.argv:
            for file, names in sorted(found.items()):
                print(f"    {file:<34}{', '.join(sorted(names))}")


if __name__ == "__main__":
    main()
