"""The race: seconds to k effective draws on covertype, tallmc against NUTS, HMCECS, SGLD-CV-PS.

Every sampler runs in fresh processes with empty caches (`racers.py`). `python -m benchmarks.race`
writes `benchmarks/race-cpu.json` or `race-gpu.json`, after the device that JAX finds, and
`python -m benchmarks.race_page` draws docs/images/race.svg from these files. `python -m benchmarks
race --page` does both. On an accelerator use the former: `python -m benchmarks` itself takes
memory there.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

GOALS = (100, 300, 1_000, 3_000, 10_000, 30_000, 100_000)
SAMPLERS = ("tallmc", "SGLD-CV-PS", "NUTS", "HMCECS")
ONCE_PER_GOAL = ("tallmc",)  # it stops at the goal; the draws of the others count as they come
MOST_SECONDS = 150.0
_LOADING = 300.0  # a process is killed so many seconds after its limit
_NOT_INHERITED = ("XLA_FLAGS", "JAX_COMPILATION_CACHE_DIR")
_HERE = Path(__file__).resolve().parent


def main(
    goals: Sequence[int] = GOALS,
    samplers: Sequence[str] = SAMPLERS,
    seconds: float = MOST_SECONDS,
    folder: Path = _HERE,
) -> None:
    facts = _lines("facts")[0]
    path = folder / f"race-{facts.pop('platform')}.json"
    record: dict[str, Any] = {"facts": facts, "limit": seconds, "samplers": {}}
    # Samplers that do not run again keep what they reached on the same day and machine.
    if path.exists() and (before := json.loads(path.read_text()))["facts"] == facts:
        record["samplers"] = before["samplers"]
    for name in samplers:
        points = record["samplers"][name] = []
        for goal in goals if name in ONCE_PER_GOAL else (max(goals),):
            reported = _lines(name, goal, seconds)
            aimed = {"goal": goal} if name in ONCE_PER_GOAL else {}
            points += [{**aimed, **point} for point in reported]
            print(name, goal, reported[-1] if reported else "no draws", flush=True)
            path.write_text(json.dumps(record, indent=1) + "\n")
            if not reported or reported[-1]["ess"] < goal:
                break


def _lines(name: str, goal: float = 0, limit: float = 0) -> list[dict[str, Any]]:
    """What a racer prints, until it ends or has to be killed."""
    kept = {key: value for key, value in os.environ.items() if key not in _NOT_INHERITED}
    process = subprocess.Popen(
        [sys.executable, "-m", "benchmarks.racers", name, str(goal), str(limit)],
        env={**kept, "TALLMC_CACHE": "off", "XLA_PYTHON_CLIENT_MEM_FRACTION": "0.2"},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    killer = threading.Timer(limit + _LOADING, process.kill)
    killer.start()
    output, errors = process.communicate()
    killer.cancel()
    if process.returncode > 0:
        print(errors[-2000:], flush=True)
    return [json.loads(line) for line in output.splitlines() if line.startswith("{")]


if __name__ == "__main__":
    parser = argparse.ArgumentParser(prog="python -m benchmarks.race", description=__doc__)
    parser.add_argument("--goals", type=int, nargs="+", default=GOALS)
    parser.add_argument("--samplers", nargs="+", default=SAMPLERS, choices=SAMPLERS)
    parser.add_argument("--seconds", type=float, default=MOST_SECONDS, help="limit per process")
    parser.add_argument("--folder", type=Path, default=_HERE, help="where to write the JSON file")
    main(**vars(parser.parse_args()))
