"""Thousands of chains on an accelerator: `python -m benchmarks accelerator`.

Writes `accelerator.md`, which is a part of docs/performance.md. Needs a GPU, and of the packages
only jax, numpy, equinox and optax.
"""

from __future__ import annotations

import dataclasses
import datetime
from pathlib import Path

import jax
import numpy as np

import tallmc
from tallmc.rows import ResidentRows

from . import report
from .problem import DIM, covertype_shaped
from .steps import STEP_SIZE, STEPS, steps_of
from .timing import best_seconds

CHAINS, SIZE = 8192, 32


def main() -> None:
    device = jax.devices()[0]
    if device.platform == "cpu":
        raise SystemExit("JAX finds no accelerator")
    posterior = covertype_shaped()
    resident = posterior.rows
    assert isinstance(resident, ResidentRows) and resident.packed is not None
    weights = np.linalg.norm(np.asarray(posterior.data.x), axis=1)
    method = tallmc.Method(
        subsample=tallmc.subsample.Preferential(weights), batch_size=SIZE, step_size=STEP_SIZE
    )
    plain = dataclasses.replace(posterior, rows=ResidentRows(posterior.data))
    calls = {
        name: steps_of(method.prepare(data).kernel, data.init, CHAINS, n_draws=1)
        for name, data in (
            ("rows read once, in one kernel", posterior),
            ("rows gathered by XLA", plain),
        )
    }
    padded = resident.packed.shape[1]
    rows = []
    for name, took in best_seconds(calls).items():
        rate = CHAINS * STEPS / took
        read = rate * SIZE * 4 / 1e12
        of_data, moved = read * (DIM + 1), read * (padded if "once" in name else DIM + 1)
        rows.append(
            (
                name,
                f"{rate / 1e6:.0f} (−{took.spread:.0%})",
                "≥ 160",
                f"{of_data:.2f}",
                f"{moved:.2f}",
                "≥ 1.2",
            )
        )
    columns = (
        "SGLD-PS",
        "million chain-steps a second",
        "target",
        "TB/s of data",
        "TB/s with padding",
        "target",
    )
    report.print_table(f"{device.device_kind}: {CHAINS:,} chains, n = {SIZE}", columns, rows)
    today = datetime.date.today().isoformat()
    measured = (
        f"Measured on {today} with jax {jax.__version__} (`python -m benchmarks accelerator`)."
    )
    Path(__file__).with_name("accelerator.md").write_text(
        f"{report.last_table().markdown()}\n\n{measured}\n"
    )
