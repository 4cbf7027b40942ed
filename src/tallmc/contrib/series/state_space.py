"""Linear-Gaussian state-space models, by buffered windows and the Kalman filter.

    x_t = A x_{t−1} + q_t,  q_t ~ N(0, diag(s²));    y_t = μ + C x_t + r_t,  r_t ~ N(0, diag(σ²))

    diagonal   A = diag(a), |a| < 1:  independent autoregressions, seen through C and noise
    full       A any matrix:          coupled autoregressions
    level      A = I, μ = 0:          random walks (the local level model)

C is given, so A, s and σ are identified (with a = 0 only s² + σ² is). The observations of one time
are taken one after the other, which diagonal noise allows: with the predicted mean m and
covariance V of x_t, c the row of C, v = y − μ − cᵀm and S = cᵀVc + σ²,

    log p(y | past) = −½ (log 2πS + v²/S),   m' = m + Vc v/S,   V' = V − Vc cᵀV/S

A missing observation is skipped. A diagonal A starts a piece from its stationary law. The other
forms start from a wide law with 10 sds of the series, because no stationary law need exist. The
bias of the buffer: the filter forgets its start at the rate of the closed loop, (A − AKC)^B with K
the Kalman gain, so the error of a window's gradient falls geometrically in B. The cost of a row is
O((L + B) d_x³).
"""

from __future__ import annotations

import functools
from typing import NamedTuple

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jax.scipy.stats import norm
from jaxtyping import Array, ArrayLike, Bool, Float, PyTree

from ..._core.arrays import Matrix, Scalar, Vector, check_numeric
from ..._core.errors import InvalidInput
from ..._core.packages import check_installed
from ...models.posterior import ModelPosterior
from .windows import LOG_SD, SPREAD, AbstractSeries, checked_series, log_normal, series_posterior

_WIDE = 10.0  # The sd of a wide start, in sds of y
_PRIORS = {
    "diagonal": f", transition uniform on (−1, 1), mean N(mean of y, ({SPREAD:g} sd of y)²)",
    "full": f", entries of the transition N(0, 1), mean N(mean of y, ({SPREAD:g} sd of y)²)",
    "level": "",
}


class KalmanFactors(NamedTuple):
    """What the filter needs."""

    transition: Matrix
    state_variances: Vector
    noise_variances: Float[Array, " p"]
    mean: Float[Array, " p"]
    start_variance: Matrix


class GaussianState(NamedTuple):
    """N(m, V)."""

    mean: Vector
    covariance: Matrix


class StateSpaceSeries(AbstractSeries):
    """The Kalman filter. Its state is the mean and the covariance of x_t."""

    loadings: Float[Array, "p d"]
    start_mean: Vector
    wide: Vector  # The sds of a wide start
    form: str = eqx.field(static=True)

    def factors(self, params: PyTree) -> KalmanFactors:
        variances, noise = params["state_scales"] ** 2, params["noise_scales"] ** 2
        mean, transition, start = jnp.zeros_like(noise), jnp.eye(len(self.wide)), self.wide**2
        if self.form != "level":
            mean, transition = params["mean"], params["transition"]
        if self.form == "diagonal":
            transition, start = jnp.diag(transition), variances / (1 - transition**2)
        transition = transition.astype(variances.dtype)
        return KalmanFactors(transition, variances, noise, mean, jnp.diag(start))

    def start(self, factors: KalmanFactors, at_origin: Bool[Array, ""]) -> GaussianState:
        return GaussianState(self.start_mean, factors.start_variance)

    def observe(
        self, factors: KalmanFactors, state: GaussianState, y: Float[Array, " p"]
    ) -> tuple[GaussianState, Scalar]:
        (m, covariance), total = state, jnp.zeros_like(factors.mean[0])
        missing = jnp.isnan(y)
        residuals = jnp.where(missing, 0, y - factors.mean)
        for entry, c in enumerate(self.loadings):
            reach = covariance @ c
            variance = c @ reach + factors.noise_variances[entry]
            v, skipped = residuals[entry] - c @ m, missing[entry]
            total += jnp.where(skipped, 0, norm.logpdf(v, 0, jnp.sqrt(variance)))
            m = jnp.where(skipped, m, m + reach * (v / variance))
            learnt = covariance - jnp.outer(reach, reach) / variance
            covariance = jnp.where(skipped, covariance, learnt)
        return GaussianState(m, covariance), total

    def move(self, factors: KalmanFactors, state: GaussianState) -> GaussianState:
        a = factors.transition
        covariance = a @ state.covariance @ a.T + jnp.diag(factors.state_variances)
        return GaussianState(a @ state.mean, covariance)

    def tilt(self, state: GaussianState, by: Vector) -> tuple[GaussianState, Scalar]:
        move = state.covariance @ by
        log_normaliser = by @ state.mean + by @ move / 2
        return GaussianState(state.mean + move, state.covariance), log_normaliser


class StateSpacePrior(eqx.Module):
    """Log-normal scales, a normal mean, and A uniform on (−1, 1) or N(0, 1) by entry."""

    centre: Float[Array, " p"]
    sd: Float[Array, " p"]
    state_sd: Vector
    form: str = eqx.field(static=True)

    def __call__(self, params: PyTree) -> Scalar:
        total = jnp.zeros_like(self.centre[0])
        for name, median in (("state_scales", self.state_sd), ("noise_scales", self.sd)):
            total += log_normal(params[name], median)
        if self.form != "level":
            total += jnp.sum(norm.logpdf(params["mean"], self.centre, SPREAD * self.sd))
        if self.form == "full":
            total += jnp.sum(norm.logpdf(params["transition"]))
        return total


def state_space(
    y: ArrayLike,
    transition: str = "diagonal",
    *,
    loadings: ArrayLike | None = None,
    window: int | None = None,
    buffer: int | None = None,
    messages: str = "past",
) -> ModelPosterior:
    """A linear-Gaussian state-space model of a series, with windows of the series as rows.

    **Arguments:**

    - `y`: the series, one number or one line per time, in order. NaN is a missing observation.
    - `transition`: "diagonal" for stationary autoregressions, "full" for coupled ones, "level" for
      random walks.
    - `loadings`: C, a matrix with one line per column of `y` and one column per state. By default
      the identity: an autoregression plus noise for each column.
    - `window`, `buffer`, `messages`: as in `hidden_markov`.

    **Returns:** a posterior with the parameters `state_scales` (s), `noise_scales` (σ) and, unless
    the transition is "level", `transition` (a or A) and `mean` (μ). `posterior.description` tells
    the buffer and the error that it causes.
    """
    series = checked_series(y)
    if transition not in tuple(_PRIORS):
        raise InvalidInput("transition", 'be "diagonal", "full" or "level"', transition)
    check_installed("numpyro", needed_by="tallmc.contrib.series.state_space")
    from numpyro.distributions import constraints

    centre, sd = np.nanmean(series, axis=0), np.nanstd(series, axis=0)
    if (sd == 0).any():
        raise InvalidInput("y", "vary in each column", "a constant column")
    c = _loadings(loadings, series.shape[1])
    d = c.shape[1]
    state_sd = np.full(d, np.linalg.norm(sd) / np.linalg.norm(c))
    at = np.linalg.lstsq(c, centre, rcond=None)[0] if transition == "level" else np.zeros(d)
    init = {"state_scales": state_sd / 2, "noise_scales": sd / 2}
    maps = {"state_scales": "positive", "noise_scales": "positive"}
    if transition != "level":
        init |= {"mean": centre, "transition": np.full(d, 0.7)}
    if transition == "diagonal":
        maps["transition"] = constraints.interval(-1.0, 1.0)
    elif transition == "full":
        init["transition"] = 0.7 * np.eye(d)
    floats = functools.partial(jnp.asarray, dtype=series.dtype)
    return series_posterior(
        StateSpaceSeries(floats(c), floats(at), floats(_WIDE * state_sd), transition),
        StateSpacePrior(floats(centre), floats(sd), floats(state_sd), transition),
        series,
        init,
        maps,
        window=window,
        buffer=buffer,
        messages=messages,
        description={
            "family": f"linear-Gaussian state-space model, {transition} transition, {d} states",
            "priors": f"log scales N(log sd of y, {LOG_SD:g}²)" + _PRIORS[transition],
        },
    )


def _loadings(given: ArrayLike | None, p: int) -> Float[np.ndarray, "p d"]:
    if given is None:
        return np.eye(p)
    found = np.asarray(check_numeric("loadings", given), np.float64)
    if found.ndim != 2 or len(found) != p or not found.shape[1] or not np.isfinite(found).all():
        rule = f"be a finite matrix with one line per column of y ({p})"
        raise InvalidInput("loadings", rule, f"shape {found.shape}")
    if np.linalg.matrix_rank(found) < found.shape[1]:
        cure = "States that are seen through the same combinations cannot be told apart."
        raise InvalidInput("loadings", "have linearly independent columns", given, cure)
    return found
