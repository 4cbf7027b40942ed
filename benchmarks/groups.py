"""Wide factors on freMTPL2freq: `python -m benchmarks.groups` with the data in ../shared/data.

The Poisson model of the tutorials with exposure, d = 53. The default runs twice in one process
without a cache of compiled programs: `cold` includes the import, reading the table and compilation.
With a file of glum's coefficients and standard errors, `--glum FILE` (JSON: name to the pair), the
posterior means and sds are compared with them.
"""

from __future__ import annotations

import argparse
import json
import os
import time
import warnings
from pathlib import Path
from typing import Any

import numpy as np

DATA = Path(__file__).parents[1] / ".." / "shared" / "data" / "fremtpl2freq.npz"
FORMULA = (
    "claims ~ VehPower + VehAge + DrivAge + BonusMalus + logDensity + Area + VehBrand + VehGas "
    "+ Region"
)


def table() -> dict[str, np.ndarray]:
    """The columns as tutorials prepare them."""
    found = np.load(DATA, allow_pickle=False)

    def text(name: str) -> np.ndarray:
        return found[f"{name}__levels"][found[name]]

    ages = found["VehAge"]
    return {
        "claims": np.minimum(found["ClaimNb"], 4),
        "exposure": np.minimum(found["Exposure"], 1.0),
        "VehPower": np.minimum(found["VehPower"], 9).astype(str),
        "VehAge": np.where(ages == 0, "0", np.where(ages < 10, "1-9", "10+")),
        "DrivAge": np.digitize(found["DrivAge"], [21, 26, 31, 41, 51, 71]).astype(str),
        "BonusMalus": np.minimum(found["BonusMalus"], 150) / 100,
        "logDensity": np.log(found["Density"]),
        **{name: text(name) for name in ("Area", "VehBrand", "VehGas", "Region")},
    }


def compared(draws: Any, glum: dict[str, tuple[float, float]]) -> tuple[float, float]:
    """The largest difference of means in glum's standard errors, and of sds relative to them."""
    shifts, ratios = [], []
    for name, values in draws.values.items():
        flat = np.asarray(values, np.float64).reshape(-1, *values.shape[2:])
        means, sds = np.atleast_1d(flat.mean(axis=0)), np.atleast_1d(flat.std(axis=0))
        names = [key for key in glum if key == name or key.startswith(f"{name}[")]
        names = names or ["intercept"]
        for mean, sd, key in zip(means, sds, names, strict=True):
            shifts.append(abs(mean - glum[key][0]) / glum[key][1])
            ratios.append(abs(sd / glum[key][1] - 1))
    return max(shifts), max(ratios)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.groups", description=__doc__)
    parser.add_argument("--glum", type=Path)
    glum = parser.parse_args().glum
    if not DATA.is_file():
        raise SystemExit(f"{DATA} is not there")
    os.environ["TALLMC_CACHE"] = "off"
    warnings.simplefilter("ignore")
    columns, start = table(), (time.process_time(), time.perf_counter())
    import tallmc

    for name in ("cold", "second call"):
        draws = tallmc.fit(
            FORMULA, columns, family="poisson", exposure="exposure", seed=0, progress=False
        )
        cpu, wall = time.process_time() - start[0], time.perf_counter() - start[1]
        print(f"freMTPL2freq, {name}: {cpu:.1f} CPU seconds, {wall:.1f} s")
        start = time.process_time(), time.perf_counter()
    print(draws.report)
    if glum is not None:
        shift, ratio = compared(draws, json.loads(glum.read_text()))
        print(f"means within {shift:.3f} standard errors of glum's, sds within {ratio:.1%}")


if __name__ == "__main__":
    main()
