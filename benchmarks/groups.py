"""Mixed models and wide factors: `python -m benchmarks.groups [CASE …]`.

Effects of one grouping factor are integrated out (`tallmc/models/groups.py`). Times include
everything but the simulation of the table: the formula, the mode, compilation, sampling and the
check on all groups. CPU seconds are those of the process.

`wide-factors` is the Poisson model of the tutorials on freMTPL2freq with exposure, d = 53, with the
data in ../shared/data. The default runs twice in one process without a cache of compiled programs.
With a file of glum's coefficients and standard errors in the environment variable GLUM (JSON: name
to the pair), the posterior means and sds are compared with them.

Each case replaces its line in benchmarks/groups.json, from which docs/groups.md is written.
"""

from __future__ import annotations

import json
import os
import sys
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

import tallmc
from tallmc.diagnose import ess

from .report import Table, facts, stamp

TABLE = Path(__file__).with_name("groups.json")
PAGE = Path(__file__).parents[1] / "docs" / "groups.md"
WORDS = """# Groups and wide factors

What models with many groups take, from the table to the draws, compilation included, in a process
of their own; a second call is in the process of the first. Effective draws are those of the worst
parameter. `python -m benchmarks.groups CASE` measures a case again and writes this page; the line
below is that of the last one. [How it works](automatic.md#many-group-effects). Other work ran on
the machine beside the flights and the 20 slopes, so compare their CPU seconds. A tenth of the
flights takes more of them than all: the rows of a plane then say little of its effect, and a draw
takes five gradients instead of two.
"""
FOLDER = Path(__file__).parents[1] / ".." / "shared" / "data"
DATA = FOLDER / "fremtpl2freq.npz"
FORMULA = (
    "claims ~ VehPower + VehAge + DrivAge + BonusMalus + logDensity + Area + VehBrand + VehGas "
    "+ Region"
)


def simulated(
    n_groups: int, n_rows: int, n_slopes: int, *, logistic: bool, seed: int = 0
) -> tuple[dict[str, Any], np.ndarray]:
    """A table with the columns y, x0, x1, … and g, and the true effects."""
    rng = np.random.default_rng(seed)
    sizes = 1 + rng.multinomial(n_rows - n_groups, np.full(n_groups, 1 / n_groups))
    g = rng.permutation(np.repeat(np.arange(n_groups), sizes))
    x = rng.normal(size=(n_rows, n_slopes)).astype(np.float32)
    sds = np.linspace(0.8, 0.4, n_slopes + 1)
    effects = sds * rng.normal(size=(n_groups, n_slopes + 1))
    beta = np.linspace(-0.5, 0.5, n_slopes + 1)
    z = beta[0] + effects[g, 0] + np.einsum("nk,nk->n", x, beta[1:] + effects[g, 1:])
    noise = rng.logistic(size=n_rows) if logistic else rng.normal(size=n_rows)
    y = (z + noise > 0).astype(np.int32) if logistic else (z + noise).astype(np.float32)
    table = {"y": y, "g": g} | {f"x{k}": x[:, k] for k in range(n_slopes)}
    return table, effects


def timed(
    name: str, formula: str, table: dict[str, Any], family: str = "bernoulli", **options: Any
) -> tallmc.Draws:
    """A fit with its report, and a line of the page."""
    wall, cpu = time.perf_counter(), time.process_time()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        draws = tallmc.fit(formula, table, family=family, progress=False, **options)
    measured(name, time.perf_counter() - wall, time.process_time() - cpu, draws)
    print(draws.summary().iloc[:8], flush=True)
    return draws


def fitted(name: str, table: dict[str, Any], family: str, **options: Any) -> tallmc.Draws:
    """The draws of a formula in which all columns have slopes per group."""
    terms = " + ".join(column for column in table if column.startswith("x"))
    formula = f"y ~ {terms} + (1 + {terms} | g)"
    return timed(name, formula, table, family, categorical=["g"], **options)


def measured(name: str, seconds: float, cpu: float, draws: tallmc.Draws) -> None:
    """Print a case, and write it into the table and the page."""
    least = float(np.min(ess(draws.positions)))
    print(f"{name}: {seconds:.1f} s, {cpu:.1f} CPU s", draws.report, sep="\n", flush=True)
    cells = f"{seconds:.1f}", f"{cpu:.1f}", f"{least:,.0f}", str(draws.report.verdict)
    record("Times", name, cells)


COLUMNS = {
    "Times": ("seconds", "CPU seconds", "effective draws", "verdict"),
    "Against NUTS": ("parameters", "means differ by, sds", "expected by chance", "sds differ by"),
}


def record(title: str, name: str, cells: tuple[str, ...]) -> None:
    """Replace the line of a case in a table, and write the page."""
    tables = json.loads(TABLE.read_text()) if TABLE.is_file() else {}
    tables.setdefault(title, {})[name] = [*cells, facts()["date"]]
    TABLE.write_text(json.dumps(tables, indent=1, ensure_ascii=False) + "\n")
    parts = [
        Table(
            title,
            ("case", *columns, "date"),
            [(case.replace("|", "\\|"), *found) for case, found in rows.items()],
        ).markdown()
        for title, columns in COLUMNS.items()
        if (rows := tables.get(title))
    ]
    PAGE.write_text("\n\n".join([WORDS.rstrip(), stamp(), *parts]) + "\n")


def compared_with(name: str, draws: tallmc.Draws, reference: dict[str, np.ndarray]) -> None:
    """Compare posterior means and sds with draws of NUTS, one chain, (draws, …) per quantity."""
    for quantity, values in reference.items():
        theirs = values.reshape(len(values), -1).astype(np.float64)
        ours = np.asarray(draws.values[quantity], np.float64)
        ours = ours.reshape(*ours.shape[:2], -1)
        shifts = (ours.mean(axis=(0, 1)) - theirs.mean(axis=0)) / theirs.std(axis=0)
        error = np.sqrt(1 / ess(ours) + 1 / ess(theirs[None]))
        ratios = ours.std(axis=(0, 1)) / theirs.std(axis=0)
        shown = (values[:8].round(3) for values in (shifts, error, ratios))
        print("{}: {} ± {} sd, sds by {}".format(quantity, *shown))
        at = np.abs(shifts).argmax()
        cells = (
            f"{np.sqrt(np.mean(shifts**2)):.3f} (rms), {abs(shifts[at]):.3f} (largest)",
            f"{np.sqrt(np.mean(error**2)):.3f} (rms)",
            f"{np.abs(ratios - 1).mean():.1%} (mean)",
        )
        record("Against NUTS", f"{name}: {quantity}", (f"{len(shifts):,}", *cells))


def logistic(n_groups: int = 100_000, n_rows: int = 1_000_000) -> None:
    """A random intercept and one slope, and the table of effects."""
    table, effects = simulated(n_groups, n_rows, 1, logistic=True)
    draws = fitted(f"logistic, {n_rows:,} rows, {n_groups:,} groups", table, "bernoulli")
    began = time.process_time()
    found = draws.group_effects(n_draws=16)
    seconds = time.process_time() - began
    order = found.index.astype(int).argsort()
    z = (found.iloc[order, 0] - effects[:, 0]) / found.iloc[order, 1]
    print(f"effects: {seconds:.0f} CPU s; (mean − truth)/sd has sd {z.std():.3f}", flush=True)


def normal(n_groups: int = 100_000, n_rows: int = 1_000_000, n_slopes: int = 20) -> None:
    """Many random slopes of a normal response."""
    table, _ = simulated(n_groups, n_rows, n_slopes, logistic=False)
    name = f"normal, {n_rows:,} rows, {n_groups:,} groups, {n_slopes} slopes"
    fitted(name, table, "gaussian", ess=400.0)


def normal_tenth() -> None:
    """The same with a tenth of the groups."""
    normal(10_000, 100_000)


def against_nuts(n_groups: int = 1_000, n_rows: int = 10_000) -> None:
    """Shared parameters and effects against NUTS of NumPyro on all rows and effects."""
    import jax
    import jax.numpy as jnp
    import numpyro
    import numpyro.distributions as dist
    from numpyro.infer import MCMC, NUTS

    table, _ = simulated(n_groups, n_rows, 1, logistic=True)
    name = f"logistic, {n_rows:,} rows, {n_groups:,} groups"
    draws = fitted(name, table, "bernoulli")
    mean, sd = float(table["x0"].mean(dtype=float)), float(table["x0"].std(dtype=float))
    x, g = jnp.asarray((table["x0"] - mean) / sd), jnp.asarray(table["g"])

    def model(y: Any) -> None:
        scale = 2.5
        beta = numpyro.sample("beta", dist.Normal(0, jnp.full(2, scale)).to_event(1))
        half_t = dist.FoldedDistribution(dist.StudentT(4.0, 0.0, scale))
        sds = numpyro.sample("sds", half_t.expand([2]).to_event(1))
        root = numpyro.sample("root", dist.LKJCholesky(2, 1.0))
        eta = numpyro.sample("eta", dist.Normal(0, jnp.ones((n_groups, 2))).to_event(2))
        effects = numpyro.deterministic("effects", eta @ (sds[:, None] * root).T)
        z = beta[0] + beta[1] * x + effects[g, 0] + effects[g, 1] * x
        numpyro.sample("y", dist.Bernoulli(logits=z), obs=y)

    began = time.process_time()
    sampler = MCMC(NUTS(model), num_warmup=500, num_samples=1500, num_chains=1, progress_bar=False)
    sampler.run(jax.random.key(0), jnp.asarray(table["y"]))
    theirs = jax.tree.map(np.asarray, sampler.get_samples())
    print(f"NUTS: {time.process_time() - began:.0f} CPU s")
    effects, beta = theirs["effects"], theirs["beta"]
    reference = {
        "Intercept": beta[:, 0] - beta[:, 1] * mean / sd,
        "x0": beta[:, 1] / sd,
        "1|g_sigma": theirs["sds"][:, 0],
        "x0|g_sigma": theirs["sds"][:, 1] / sd,
        "g_correlation": theirs["root"][:, 1, 0],
    }
    compared_with(name, draws, reference)
    found = draws.group_effects()
    order = found.index.astype(int).argsort()
    of_model = np.stack([effects[..., 0] - effects[..., 1] * mean / sd, effects[..., 1] / sd], -1)
    for k in range(2):
        ours, spread = found.iloc[order, 2 * k], found.iloc[order, 2 * k + 1]
        shifts = (ours - of_model[..., k].mean(axis=0)) / of_model[..., k].std(axis=0)
        ratio = spread / of_model[..., k].std(axis=0)
        print(
            f"effects {found.columns[2 * k]}: means differ by {np.sqrt(np.mean(shifts**2)):.3f} sd "
            f"(rms), sds by {ratio.mean():.3f} ± {ratio.std():.3f}",
            flush=True,
        )


def claims() -> dict[str, np.ndarray]:
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


def wide_factors() -> None:
    """The default on freMTPL2freq, twice."""
    glum = os.environ.get("GLUM")
    if not DATA.is_file():
        raise SystemExit(f"{DATA} is not there")
    os.environ["TALLMC_CACHE"] = "off"
    warnings.simplefilter("ignore")
    columns, start = claims(), (time.process_time(), time.perf_counter())
    for name in ("cold", "second call"):
        draws = tallmc.fit(
            FORMULA, columns, family="poisson", exposure="exposure", seed=0, progress=False
        )
        cpu, wall = time.process_time() - start[0], time.perf_counter() - start[1]
        measured(f"freMTPL2freq, {len(columns['claims']):,} rows, {name}", wall, cpu, draws)
        start = time.process_time(), time.perf_counter()
    if glum is not None:
        shift, ratio = compared(draws, json.loads(Path(glum).read_text()))
        print(f"means within {shift:.3f} standard errors of glum's, sds within {ratio:.1%}")


CROSSED = "late ~ hour + carrier + (1 | tailnum) + (1 | dest)"


def flights(share: float) -> dict[str, np.ndarray]:
    """A share of nycflights13; a flight is late if it departs over 30 minutes late."""
    found = np.load(FOLDER / "nycflights13.npz", allow_pickle=False)
    kept = np.isfinite(found["dep_delay"]) & (found["tailnum"] >= 0)
    kept &= np.random.default_rng(0).random(len(kept)) < share
    names = ("carrier", "tailnum", "dest")
    table = {name: found[f"{name}__levels"][found[name][kept]] for name in names}
    return table | {
        "late": (found["dep_delay"][kept] > 30).astype(int),
        "hour": found["hour"][kept],
    }


def crossed(share: float = 1.0, ess: float = 400.0, max_seconds: float = 1800.0) -> None:
    """Effects of planes and airports in nycflights13, on a share of the flights."""
    table = flights(share)
    name = f"flights, {len(table['late']):,} rows"
    timed(name, CROSSED, table, ess=ess, max_seconds=max_seconds)


def crossed_against_nuts(share: float = 0.1) -> None:
    """A tenth of the flights against NUTS of NumPyro, on the same rows and with the same prior."""
    import jax
    import jax.numpy as jnp
    import numpyro
    import numpyro.distributions as dist
    from numpyro.infer import MCMC, NUTS

    table = flights(share)
    name = f"flights, {len(table['late']):,} rows"
    draws = timed(name, CROSSED, table, ess=1000)
    carriers = np.unique(table["carrier"])[1:]
    x = np.column_stack([table["hour"], *(table["carrier"] == level for level in carriers)])
    means, sds = x.mean(axis=0), x.std(axis=0)
    standard = jnp.asarray((x - means) / sds)
    codes = {
        factor: np.unique(table[factor], return_inverse=True)[1] for factor in ("tailnum", "dest")
    }

    def model(y: Any) -> None:
        intercept = numpyro.sample("intercept", dist.Normal(0, 2.5))
        beta = numpyro.sample("beta", dist.Normal(0, jnp.full(len(sds), 2.5)).to_event(1))
        z = intercept + standard @ beta
        for factor, code in codes.items():
            sd = numpyro.sample(f"sd {factor}", dist.FoldedDistribution(dist.StudentT(4, 0, 2.5)))
            eta = dist.Normal(0, jnp.ones(code.max() + 1)).to_event(1)
            effects = sd * numpyro.sample(f"eta {factor}", eta)
            z = z + numpyro.deterministic(factor, effects)[code]
        numpyro.sample("y", dist.Bernoulli(logits=z), obs=y)

    began = time.process_time()
    sampler = MCMC(NUTS(model), num_warmup=400, num_samples=800, num_chains=1, progress_bar=False)
    sampler.run(jax.random.key(0), jnp.asarray(table["late"]))
    theirs = jax.tree.map(np.asarray, sampler.get_samples())
    print(f"NUTS: {time.process_time() - began:.0f} CPU s", flush=True)
    beta = theirs["beta"] / sds
    reference = {
        "Intercept": theirs["intercept"] - beta @ means,
        "hour": beta[:, 0],
        "carrier": beta[:, 1:],
        **{f"1|{factor}_sigma": theirs[f"sd {factor}"] for factor in codes},
        **{f"1|{factor}": theirs[factor] for factor in codes},
    }
    compared_with(name, draws, reference)


def tennis(ess: float = 1000.0, max_seconds: float = 600.0) -> None:
    """Bradley and Terry's model with random skills; the order of the players is random."""
    found = np.load(FOLDER / "tennis.npz", allow_pickle=False)
    kept = found["winner"] != found["loser"]  # two unknown players
    winner, loser = (found["players"][found[name][kept]] for name in ("winner", "loser"))
    won = np.random.default_rng(0).random(kept.sum()) < 0.5
    table = {
        "won": won.astype(int),
        "one": np.where(won, winner, loser),
        "other": np.where(won, loser, winner),
    }
    formula = "won ~ 0 + (1 | one - other)"
    timed(f"tennis, {kept.sum():,} matches", formula, table, ess=ess, max_seconds=max_seconds)


CASES: dict[str, Callable[[], None]] = {
    "logistic": logistic,
    "normal": normal,
    "normal-tenth": normal_tenth,
    "against-nuts": against_nuts,
    "crossed": crossed,
    "crossed-against-nuts": crossed_against_nuts,
    "tennis": tennis,
    "wide-factors": wide_factors,
}


def main() -> None:
    """All cases, or those that are named."""
    for name in sys.argv[1:] or CASES:
        CASES[name]()


if __name__ == "__main__":
    main()
