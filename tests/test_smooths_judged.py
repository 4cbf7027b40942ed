"""Smooth terms against mgcv's bam, and the coverage of their bands."""

import shutil
import subprocess
import warnings

import numpy as np
import pandas as pd
import pytest

import tallmc

pytestmark = pytest.mark.slow

_SCRIPT = """
suppressMessages(library(mgcv))
rows <- read.csv("rows.csv", stringsAsFactors = TRUE)
fit <- bam({formula}, data = rows, family = {family}, knots = list({knots}))
for (name in c({names})) {{
  grid <- read.csv(paste0(name, ".csv"))
  new <- rows[rep(1, nrow(grid)), ]
  new[[name]] <- grid[[name]]
  found <- predict(fit, new, type = "terms", se.fit = TRUE)
  column <- grep(paste0("s(", name), colnames(found$fit), fixed = TRUE)
  out <- data.frame(mean = found$fit[, column], sd = found$se.fit[, column])
  write.csv(out, paste0(name, "_bam.csv"), row.names = FALSE)
}}
edf <- summary(fit)$s.table[, "edf"]
write.csv(data.frame(edf = edf), "edf.csv", row.names = FALSE)
"""


@pytest.fixture(scope="module")
def rscript():
    if shutil.which("Rscript") is None:
        pytest.skip("needs Rscript with the package mgcv")
    asked = ["Rscript", "-e", "library(mgcv)"]
    if subprocess.run(asked, capture_output=True, check=False).returncode:
        pytest.skip("needs the R package mgcv")


def _fit(formula, table, **options):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return tallmc.fit(formula, table, seed=1, progress=False, **options)


def _against_bam(folder, table, ours, theirs, family, names):
    """Distances between the curves in units of the 90 % band, and both numbers of edf."""
    draws = _fit(ours, table, family=family)
    assert draws.report.trusted
    pd.DataFrame(table).to_csv(folder / "rows.csv", index=False)
    curves = {name: draws.smooth(f"s({name})") for name in names}
    for name, curve in curves.items():
        curve[[name]].to_csv(folder / f"{name}.csv", index=False)
    quoted = ", ".join(f'"{name}"' for name in names)
    law = {"bernoulli": "binomial()", "gaussian": "gaussian()"}[family]
    # bam puts knots at quantiles of all rows, and those of a circle at equal distances.
    knots = ", ".join(
        f"{effect.variables[0]} = c({', '.join(repr(knot) for (knot,) in effect.basis.knots)})"
        for effect in draws.predictive.smooths.value
    )
    script = _SCRIPT.format(formula=theirs, family=law, names=quoted, knots=knots)
    subprocess.run(["Rscript", "-e", script], cwd=folder, check=True, capture_output=True)
    distances = {}
    for name, curve in curves.items():
        bam = pd.read_csv(folder / f"{name}_bam.csv")
        # Curves are zero on average over the rows, of which knots see 50,000.
        move = (curve["mean"] - bam["mean"]).mean()
        band = curve["high"] - curve["low"]
        distances[name] = float(((curve["mean"] - bam["mean"] - move).abs() / band).max())
    return distances, draws.smooths()["edf"].to_numpy(), pd.read_csv(folder / "edf.csv")["edf"]


def test_flights_agree_with_bam(shared, rscript, tmp_path):
    with np.load(shared / "data" / "nycflights13.npz", allow_pickle=False) as file:
        flights = {name: file[name] for name in ("month", "day", "sched_dep_time", "arr_delay")}
        origin = file["origin__levels"][file["origin"]].astype(str)
    known = np.isfinite(flights["arr_delay"].astype(float))
    dates = pd.to_datetime(
        pd.DataFrame({"year": 2013, "month": flights["month"], "day": flights["day"]})
    )
    clock = flights["sched_dep_time"].astype(int)
    table = {
        "late": (flights["arr_delay"] > 15)[known].astype(int),
        "origin": origin[known],
        "day": dates.dt.day_of_year.to_numpy()[known],
        "time": (clock // 100 + clock % 100 / 60)[known],
    }
    distances, edf, of_bam = _against_bam(
        tmp_path,
        table,
        "late ~ origin + s(day, k=20) + s(time, bs='cc', k=12, ends=(0, 24))",
        'late ~ origin + s(day, k = 20, bs = "cr") + s(time, k = 12, bs = "cc")',
        "bernoulli",
        ("day", "time"),
    )
    print(distances, edf, of_bam.to_numpy())
    assert max(distances.values()) < 0.1
    np.testing.assert_allclose(edf, of_bam, atol=0.5)


def test_simulated_curves_agree_with_bam(rscript, tmp_path):
    rng = np.random.default_rng(5)
    n = 20_000
    x, z, time = rng.uniform(size=n), rng.uniform(size=n), rng.uniform(0, 24, n)
    truth = np.sin(6 * x) + 0.3 * np.cos(np.pi * time / 12)
    table = {"x": x, "z": z, "time": time, "y": truth + z + rng.normal(size=n)}
    distances, edf, of_bam = _against_bam(
        tmp_path,
        table,
        "y ~ s(x) + s(z) + s(time, bs='cc', ends=(0, 24))",
        'y ~ s(x, bs = "cr") + s(z, bs = "cr") + s(time, bs = "cc")',
        "gaussian",
        ("x", "z", "time"),
    )
    print(distances, edf, of_bam.to_numpy())
    assert max(distances[name] for name in ("x", "time")) < 0.1
    # z is straight: REML says σ = 0, the posterior of σ has mass above.
    assert distances["z"] < 0.25


def test_bands_cover_as_often_as_they_say():
    """Pointwise 90 % bands over 50 data sets, as an average over the range (Nychka, 1988)."""
    covered = []
    for seed in range(50):
        rng = np.random.default_rng(seed)
        x = rng.uniform(size=2000)
        truth = np.sin(6 * x) + x
        table = {"x": x, "y": truth + rng.normal(size=len(x))}
        curve = _fit("y ~ s(x)", table, family="gaussian", ess=400).smooth("s(x)")
        at = np.sin(6 * curve["x"]) + curve["x"] - truth.mean()
        covered.append(((curve["low"] <= at) & (at <= curve["high"])).mean())
    print(np.mean(covered), np.std(covered) / np.sqrt(50))
    assert 0.85 <= np.mean(covered) <= 0.95
