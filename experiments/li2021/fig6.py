"""Figure 6: a Gaussian fitted to log-normal rows, by FlyMC, EWSG and random-walk Metropolis.

N = 10⁵ rows from log N(0, 1), model N(μ, σ²), flat prior on (μ, log σ). FlyMC redraws the
brightness of 10 % of the rows in each of 10,000 iterations. EWSG has b = 10,900, h = 10⁻⁴ and
γ = 300, and reads two batches per step: 5,000 steps are the 1,090 passes of the paper. The first
1,000 draws of each are dropped. The posterior is known in closed form.

As stated, FlyMC has the Taylor bound of the code of Bardenet, Doucet and Holmes (2017): the same
remainder for all rows, that of the most extreme row. Their code starts at the mode with 10 % of the
rows bright at random, which moves the chain in a few steps to where 10 % of the rows are bright.
`FlyMC` draws the brightness at the start from its law, so a second run starts at such a place.

As it works, each row has its own remainder. Then hardly any row is bright, and FlyMC mixes like
random-walk Metropolis that reads all rows. EWSG is compared with SGHMC-CV at the same h, γ and
passes, which are 10,000 steps.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from tallmc import diagnose
from tallmc._anchor.anchor import Anchor, find_anchor
from tallmc.methods import ewsg, random_walk, sghmc_cv
from tallmc.methods.abstract import AbstractMethod
from tallmc.methods.firefly import BoundChoice, FlyMC, Taylor, gaussian_bound
from tallmc.models.posterior import Posterior
from tallmc.results.draws import Draws

from ..chains import quietly_sampled
from ..results import (
    Claim,
    Curve,
    ExperimentSetting,
    Panel,
    Result,
    ResultTable,
    close,
    over_chains,
)
from ..shapes import ellipses
from .steps import library_step

N_ROWS, SEED, LAGS, DROPPED = 100_000, 1, 500, 1000
BATCH, STEP_SIZE, FRICTION, FRACTION = 10_900, 1e-4, 300.0, 0.1
PUBLISHED_SHARE = 10.9
"""Rows that FlyMC uses per iteration, in per cent: those redrawn and the bright ones."""
# Chosen for an acceptance rate of about one half, to which the authors adapt them.
WALK, WALK_UNIFORM = 1.6e-5, 6e-7
ITERATIONS, EWSG_STEPS = 10_000, 5_000
SHOWN = 1000
PARAMETERS = ("μ", "log σ")


class ExactMoments(NamedTuple):
    """Posterior means and sds of μ and log σ."""

    mean: Float[np.ndarray, " 2"]
    sd: Float[np.ndarray, " 2"]


def uniform_gaussian_bound(least: float, largest: float) -> Taylor:
    """The bound of Bardenet, Doucet and Holmes (2017), one number for all rows.

        M ‖(μ − μ̂, λ − λ̂)‖₁³/6,   M ≥ |third derivatives|,   λ = log σ

    M is that of the most extreme row, from `least` to `largest`. Their code expands in σ.
    """

    def growth(anchor: Any, params: Any) -> Float[Array, " 1"]:
        means = jnp.stack([anchor[0], params[0]])
        reach = jnp.max(jnp.abs(jnp.stack([largest - means, least - means])))
        precision = jnp.exp(-2 * jnp.minimum(anchor[1], params[1]))
        third_derivative = precision * jnp.maximum(jnp.maximum(4 * reach**2, 4 * reach), 2)
        distance = jnp.abs(params[0] - anchor[0]) + jnp.abs(params[1] - anchor[1])
        return (third_derivative * distance**3 / 6)[None]

    return Taylor(lambda anchor, x: jnp.ones(1), growth, is_proved=True)


def as_stated(setting: ExperimentSetting) -> Result:
    with jax.enable_x64(True):
        x = lognormal_rows()
        target = gaussian_with_unknown_scale(x)
        anchor = find_anchor(target)
        bound = uniform_gaussian_bound(x.min(), x.max())
        far = start_with_bright_share(anchor, bound, FRACTION)
        runs = {
            "MH": _run(setting, "MH", target, random_walk(WALK), anchor),
            "FlyMC": _run(setting, "FlyMC", target, _firefly(bound, WALK_UNIFORM), anchor),
            "FlyMC, 10 % bright at the start": _run(
                setting, "FlyMC, far", target, _firefly(bound, WALK_UNIFORM), anchor, far
            ),
            "EWSG": _run(
                setting,
                "EWSG",
                target,
                ewsg(library_step(STEP_SIZE), BATCH, FRICTION),
                anchor,
                n_draws=EWSG_STEPS,
            ),
        }
    exact = exact_moments(x)
    found = {name: _lag(draws, LAGS) for name, draws in runs.items()}
    far_name = "FlyMC, 10 % bright at the start"
    far_positions = _standardised(runs[far_name], exact)
    claims = [
        _agrees_with_exact("MH", runs["MH"], exact),
        Claim(
            "FlyMC is strongly correlated at lag 500 (μ)",
            "> 0.2",
            f"{found['FlyMC'][0]:.2f}, {found[far_name][0]:.2f} from the far start",
            bool(min(found["FlyMC"][0], found[far_name][0]) > 0.2),
            required=False,
        ),
        Claim(
            "the autocorrelation of EWSG decays faster than that of FlyMC (μ, lag 500)",
            "lower",
            f"{found['EWSG'][0]:.2f} against {found['FlyMC'][0]:.2f}",
            bool(found["EWSG"][0] < found["FlyMC"][0]),
            required=False,
        ),
        close(
            "rows per iteration of FlyMC, in per cent, from the far start",
            _share_used(runs[far_name]).mean(),
            PUBLISHED_SHARE,
            0.3,
            required=False,
        ),
        Claim(
            "FlyMC is far from the posterior after 1,000 iterations, from the far start",
            "mean distance > 3 sd",
            f"{np.linalg.norm(far_positions, axis=2).mean():.2f} sd (exact draws: 1.25)",
            bool(np.linalg.norm(far_positions, axis=2).mean() > 3),
            required=False,
        ),
        _centred("EWSG", runs["EWSG"], exact),
        _spread("EWSG", runs["EWSG"], exact),
    ]
    remarks = (
        "The bound is expanded in log σ; the authors' code expands in σ.",
        "The data are not the authors'; their largest row decides how loose their bound is.",
    )
    return _result(runs, exact, claims, remarks)


def as_works(setting: ExperimentSetting) -> Result:
    with jax.enable_x64(True):
        x = lognormal_rows()
        target = gaussian_with_unknown_scale(x)
        anchor = find_anchor(target)
        bound = gaussian_bound()
        runs = {
            "MH": _run(setting, "MH", target, random_walk(WALK), anchor),
            "FlyMC": _run(setting, "FlyMC", target, _firefly(bound, WALK), anchor),
            "SGHMC-CV": _run(
                setting,
                "SGHMC-CV",
                target,
                sghmc_cv(library_step(STEP_SIZE), BATCH, FRICTION),
                anchor,
            ),
        }
    exact = exact_moments(x)
    bright = runs["FlyMC"].sample_stats["bright_rows"].mean()
    of_mh, of_firefly = (
        diagnose.autocorrelation(_kept(runs[name])[:, :, 0], 20).mean(axis=0)
        for name in ("MH", "FlyMC")
    )
    claims = [
        _agrees_with_exact("MH", runs["MH"], exact),
        _agrees_with_exact("FlyMC", runs["FlyMC"], exact),
        Claim("bright rows of FlyMC", "< 1", f"{bright:.3g}", bool(bright < 1)),
        Claim(
            "FlyMC mixes like MH: autocorrelation of μ at lag 20",
            "within 0.1",
            f"{of_firefly[-1]:.2f} against {of_mh[-1]:.2f}",
            bool(abs(of_firefly[-1] - of_mh[-1]) < 0.1),
        ),
        _centred("SGHMC-CV", runs["SGHMC-CV"], exact),
        _spread("SGHMC-CV", runs["SGHMC-CV"], exact),
    ]
    return _result(runs, exact, claims, ())


def lognormal_rows() -> Float[np.ndarray, " N"]:
    return np.random.RandomState(SEED).lognormal(size=N_ROWS)


def gaussian_with_unknown_scale(x: Float[np.ndarray, " N"]) -> Posterior:
    """N(μ, σ²) with parameters (μ, log σ) and a flat prior."""
    init = (jnp.asarray(x.mean()), jnp.asarray(np.log(x.std())))
    return Posterior(_log_likelihood, _flat, data=x, init=init)


def exact_moments(x: Float[np.ndarray, " N"]) -> ExactMoments:
    """N σ̂²/σ² is χ² with N − 1 degrees of freedom.

    The sds are those for large N, with a relative error of order 1/N.
    """
    n = len(x)
    mean = np.array([x.mean(), np.log(x.std()) + 0.5 * np.log(n / (n - 1)) + 0.5 / n])
    return ExactMoments(mean, np.array([x.std() / np.sqrt(n), 1 / np.sqrt(2 * n)]))


def start_with_bright_share(anchor: Anchor, bound: Taylor, share: float) -> Float[np.ndarray, " 2"]:
    """The position on the axis of μ at which this share of the rows is bright, uniform bound."""
    centre = np.asarray(anchor.position)

    def chance(move: float) -> float:
        anchor_params, params = jnp.asarray(centre), jnp.asarray(centre + np.array([move, 0.0]))
        return float(-np.expm1(-np.asarray(bound.growth(anchor_params, params))[0]))

    low, high = 0.0, 1.0
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if chance(middle) < share else (low, middle)
    return centre + np.array([low, 0.0])


def _log_likelihood(params: tuple[Array, Array], x: Array) -> Array:
    mean, log_sd = params
    return -log_sd - (x - mean) ** 2 * jnp.exp(-2 * log_sd) / 2


def _flat(params: tuple[Array, Array]) -> float:
    return 0.0


def _firefly(bound: BoundChoice, step_size: float) -> FlyMC:
    return FlyMC(step_size=step_size, fraction=FRACTION, proposal="random-walk", bound=bound)


def _run(
    setting: ExperimentSetting,
    name: str,
    target: Posterior,
    method: AbstractMethod,
    anchor: Anchor,
    start: Float[np.ndarray, " 2"] | None = None,
    n_draws: int = ITERATIONS,
) -> Draws:
    return quietly_sampled(
        target,
        method,
        anchor,
        chains=setting.pick(4, 2),
        n_draws=setting.pick(n_draws, 2_500),
        thin=1,
        seed=SEED,
        share=setting.part(name),
        start=start,
    )


def _kept(draws: Draws) -> Float[np.ndarray, "chains draws 2"]:
    return np.asarray(draws.positions)[:, DROPPED:]


def _standardised(draws: Draws, exact: ExactMoments) -> Float[np.ndarray, "chains draws 2"]:
    return (_kept(draws) - exact.mean) / exact.sd


def _lag(draws: Draws, lag: int) -> Float[np.ndarray, " 2"]:
    """The autocorrelations of μ and log σ at this lag, means over chains."""
    return np.array(
        [diagnose.autocorrelation(_kept(draws)[:, :, j], lag)[:, lag].mean() for j in (0, 1)]
    )


def _share_used(draws: Draws) -> Float[np.ndarray, "chains draws"]:
    """Redrawn and bright rows in per cent, counted as by the authors: bright rows once."""
    return FRACTION * 100 + np.asarray(draws.sample_stats["bright_rows"]) / N_ROWS * 100


def _agrees_with_exact(name: str, draws: Draws, exact: ExactMoments) -> Claim:
    """Means and mean squares within 4.6 Monte-Carlo standard errors, from batches of draws."""
    z = _standardised(draws, exact)
    values = np.concatenate([z, z**2 - 1], axis=2)
    parts = [part.mean(axis=1) for part in np.array_split(values, 5, axis=1)]
    blocks = np.concatenate(parts)
    scores = blocks.mean(axis=0) / (blocks.std(axis=0, ddof=1) / np.sqrt(len(blocks)))
    return Claim(
        f"means and variances of {name} agree with the exact posterior",
        "largest |z| ≤ 4.6",
        f"{np.abs(scores).max():.1f}",
        bool(np.abs(scores).max() <= 4.6),
    )


def _centred(name: str, draws: Draws, exact: ExactMoments) -> Claim:
    off = _standardised(draws, exact).mean(axis=(0, 1))
    return Claim(
        f"the draws of {name} centre around the mode",
        "means within 0.5 posterior sd",
        f"{off[0]:.2f} (μ), {off[1]:.2f} (log σ)",
        bool((np.abs(off) < 0.5).all()),
        required=False,
    )


def _spread(name: str, draws: Draws, exact: ExactMoments) -> Claim:
    ratio = _standardised(draws, exact).std(axis=(0, 1))
    return Claim(
        f"the draws of {name} have the spread of the posterior",
        "sds within 20 %",
        f"{ratio[0]:.2f} (μ), {ratio[1]:.2f} (log σ) times the posterior's",
        bool((np.abs(ratio - 1) < 0.2).all()),
        required=False,
    )


def _result(
    runs: dict[str, Draws],
    exact: ExactMoments,
    claims: list[Claim],
    remarks: tuple[str, ...],
) -> Result:
    firefly = [name for name in runs if name.startswith("FlyMC")]
    other = [name for name in runs if not name.startswith("FlyMC")]
    panels = [
        Panel("a", "(a) FlyMC: bright rows", "iteration", "bright rows"),
        *(
            Panel(f"b{j}", f"(b) autocorrelation of {name}", "lag", "autocorrelation")
            for j, name in enumerate(PARAMETERS)
        ),
        Panel("c", f"(c) draws of {other[-1]}", *PARAMETERS),
        Panel("d", "(d) draws of FlyMC", *PARAMETERS),
    ]
    curves = []
    for name in firefly:
        bright = np.asarray(runs[name].sample_stats["bright_rows"])[0]
        every = max(1, len(bright) // SHOWN)
        curves.append(Curve("a", name, np.arange(0, len(bright), every), bright[::every]))
    for j in (0, 1):
        for name, draws in runs.items():
            values = diagnose.autocorrelation(_kept(draws)[:, :, j], LAGS)
            curves.append(over_chains(f"b{j}", name, np.arange(LAGS + 1), values))
    for panel, names in (("c", ["MH", other[-1]]), ("d", ["MH", *firefly])):
        curves += [_cloud(panel, name, runs[name]) for name in names]
        curves.append(ellipses(panel, "posterior, 50 and 95 %", exact.mean, np.diag(exact.sd**2)))
    rows = [
        [
            name,
            *(f"{number:.2f}" for number in _standardised(draws, exact).mean(axis=(0, 1))),
            *(f"{number:.2f}" for number in _standardised(draws, exact).std(axis=(0, 1))),
            *(f"{number:.2f}" for number in _lag(draws, LAGS)),
            f"{np.asarray(draws.sample_stats['batch_size']).mean() / N_ROWS:.1%}",
            _acceptance(draws),
        ]
        for name, draws in runs.items()
    ]
    columns = ["method", "mean of μ", "of log σ", "sd of μ", "of log σ"]
    columns += ["lag 500, μ", "log σ", "rows per step", "accepted"]
    title = "draws in posterior sds from the posterior mean, and their cost"
    return Result(panels, curves, claims, [ResultTable(title, columns, rows)], remarks)


def _acceptance(draws: Draws) -> str:
    rates = draws.sample_stats.get("acceptance_rate")
    return "" if rates is None else f"{np.asarray(rates).mean():.2f}"


def _cloud(panel: str, name: str, draws: Draws) -> Curve:
    kept = _kept(draws)[0]
    shown = kept[:: max(1, len(kept) // SHOWN)]
    return Curve(panel, name, shown[:, 0], shown[:, 1], kind="cloud")
