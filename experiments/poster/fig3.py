"""Figure 3: a posterior with two modes, 500 passes after 20 passes of burn-in or optimisation.

The poster gives no settings. Here N = 100 rows come from ½ N(θ₁, 2) + ½ N(θ₁ + θ₂, 2) with
θ = (0, 3), as in Welling and Teh (2011) but with modes further apart; the priors are N(0, 10). The
posterior has a second mode near (3, −3). Subsamples have 10 rows. All methods start at the mode
with θ₂ > 0, in 20 chains, except the 1,024 chains of SGLD with many starts, drawn from the prior.

The share of the posterior with θ₂ > 0 is known by quadrature. Cyclical steps are SGLD with a step
size that starts each cycle four times larger.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from tallmc._anchor.anchor import find_anchor
from tallmc.methods import cyclical_sgld, mala, sgld, sgld_cv, ula
from tallmc.methods.abstract import AbstractMethod
from tallmc.models.posterior import Posterior

from ..chains import quietly_sampled
from ..results import Claim, Curve, ExperimentSetting, Panel, Result, ResultTable
from ..shapes import contour_lines, joined

N_ROWS, SIZE, PASSES, BURN_IN, SEED = 100, 10, 500, 20, 4
PRIOR_SD = np.sqrt([10.0, 10.0])
STEP, LARGE_STEP, CYCLE = 0.015, 0.06, 500
MODE = np.array([0.0, 3.0])
_SHOWN, _GRID = 1000, 400
_LOW, _HIGH = np.array([-2.5, -6.0]), np.array([5.5, 6.0])


def as_stated(setting: ExperimentSetting) -> Result:
    rng = np.random.default_rng(SEED)
    x = rng.normal(MODE[1] * rng.integers(0, 2, N_ROWS), np.sqrt(2.0))
    starts = PRIOR_SD * rng.normal(size=(setting.pick(1024, 8), 2))
    methods: dict[str, tuple[AbstractMethod, bool, bool]] = {
        "MALA": (mala(0.05), True, False),
        "ULA": (ula(STEP), True, False),
        "SGLD": (sgld(STEP, SIZE), False, False),
        "SGLD-CV": (sgld_cv(STEP, SIZE), False, False),
        "cyclical SGLD": (cyclical_sgld(LARGE_STEP, SIZE, CYCLE), False, False),
        "SGLD, many starts": (sgld(STEP, SIZE), False, True),
    }
    with jax.enable_x64(True):
        target = Posterior(_log_likelihood, _log_prior, data=x, init=jnp.asarray(MODE))
        anchor = find_anchor(target)
        grid_x, grid_y, values = _quadrature(target)
        runs = {}
        for label, (method, full, many) in methods.items():
            per_pass = 1 if full else N_ROWS // SIZE
            kept_share = 0.25 if label.startswith("cyclical") else 1.0
            draws = quietly_sampled(
                target,
                method,
                anchor,
                chains=len(starts) if many else setting.pick(20, 8),
                n_draws=round((PASSES + BURN_IN) * per_pass * kept_share),
                thin=1,
                seed=SEED,
                share=setting.part(label),
                start=starts if many else np.asarray(anchor.position),
            )
            runs[label] = np.asarray(draws.positions)[:, round(BURN_IN * per_pass * kept_share) :]
    upper = values * (grid_y > 0)
    exact = float(upper.sum() / values.sum())
    within = _within_mode(runs["MALA"], float((upper * grid_x).sum() / upper.sum()))
    return _result(runs, exact, contour_lines(grid_x, grid_y, values), within)


def _log_likelihood(theta: Array, x: Array) -> Array:
    first, second = -((x - theta[0]) ** 2) / 4, -((x - theta[0] - theta[1]) ** 2) / 4
    return jnp.logaddexp(first, second)


def _log_prior(theta: Array) -> Array:
    return -jnp.sum((theta / PRIOR_SD) ** 2) / 2


def _quadrature(
    target: Posterior,
) -> tuple[Float[np.ndarray, "g g"], Float[np.ndarray, "g g"], Float[np.ndarray, "g g"]]:
    x, y = np.meshgrid(*(np.linspace(a, b, _GRID) for a, b in zip(_LOW, _HIGH, strict=True)))
    points = jnp.asarray(np.stack([x.ravel(), y.ravel()], axis=1))
    potential = np.asarray(jax.lax.map(target.potential, points, batch_size=1000))
    return x, y, np.exp(potential.min() - potential).reshape(x.shape)


def _within_mode(values: Float[np.ndarray, "chains draws 2"], exact: float) -> Claim:
    """The mean of θ₁ over the draws of MALA with θ₂ > 0, which quadrature knows."""
    upper = values[:, :, 1] > 0
    visits = upper.sum(axis=1) > values.shape[1] / 4
    means = np.array(
        [chain[mask, 0].mean() for chain, mask in zip(values[visits], upper[visits], strict=True)]
    )
    error = means.std(ddof=1) / np.sqrt(len(means))
    return Claim(
        "MALA: mean of θ₁ where θ₂ > 0",
        f"{exact:.3f} ± 4 standard errors",
        f"{means.mean():.3f} ± {error:.3f}",
        bool(abs(means.mean() - exact) < 4 * error),
    )


def _result(
    runs: dict[str, Float[np.ndarray, "chains draws 2"]],
    exact: float,
    lines: list[Float[np.ndarray, "k 2"]],
    within: Claim,
) -> Result:
    panels, curves, rows, claims = [], [], [], [within]
    for label, values in runs.items():
        panels.append(Panel(label, label, "θ₁", "θ₂"))
        shown = values.reshape(-1, 2)[:: max(1, values[:, :, 0].size // _SHOWN)]
        curves.append(Curve(label, label, shown[:, 0], shown[:, 1], kind="cloud"))
        curves.append(joined(label, "posterior, 50 and 95 %", lines, kind="reference"))
        positive = (values[:, :, 1] > 0).mean(axis=1)
        error = positive.std(ddof=1) / np.sqrt(len(positive))
        outside = np.mean(~((values > _LOW) & (values < _HIGH)).all(axis=2))
        stuck = np.mean((positive < 0.02) | (positive > 0.98))
        rows.append(
            [
                label,
                f"{positive.mean():.2f} ± {error:.2f}",
                f"{positive.min():.2f} to {positive.max():.2f}",
                f"{stuck:.0%}",
                f"{outside:.0%}",
            ]
        )
        claims.append(
            Claim(
                f"{label}: share of the draws with θ₂ > 0",
                f"{exact:.3f} ± max(3 standard errors, 0.05)",
                f"{positive.mean():.3f} ± {error:.3f}",
                bool(abs(positive.mean() - exact) < max(3 * error, 0.05)),
                required=False,
            )
        )
    columns = ["method", "share with θ₂ > 0", "over chains", "chains in one mode", "outside"]
    table = ResultTable(f"posterior: {exact:.3f} with θ₂ > 0", columns, rows)
    return Result(panels, curves, claims, [table])
