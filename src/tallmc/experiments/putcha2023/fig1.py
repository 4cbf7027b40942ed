"""Figure 1: the pseudo-variance of gradient estimates against the subsample's size, N = 1000, at ten draws near the mode.

(a) a bivariate Gaussian, (b) a balanced and (c) an imbalanced logistic regression. Every curve is known exactly (`diagnose`),

    with replacement       V(n) = V(1)/n
    without replacement    V(n) ∝ (N − n)/n

and is simulated too, from 1,000 batches at each of seven sizes. The standard error of a simulated variance is known as well: for
the mean Z of n independent terms with covariance C and fourth moment m₄ = E‖Y − EY‖⁴,

    E‖Z‖⁴ = [m₄ + (n − 1)((tr C)² + 2 tr C²)]/n³

As run: (a) the model of figure 4(a)'s code, and candidates from the posterior of yet another covariance; (b, c) around the Adam
modes that the notebooks print, with ‖∇²f_i‖_F for the weights of SGLD-CV-PS where the paper has eq. 16.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Array, Float, PRNGKeyArray

from ... import diagnose
from ..._anchor import Anchor, laplace
from ..._kernel import Kernel, Supply
from ..._method import Method
from ..._posterior import AbstractPosterior
from ..._random import new_key
from ...gradient import ControlVariate, Simple
from ...models import gaussian, logistic_regression
from ...subsample import Optimal, Preferential, Uniform
from ...subsample.optimal import OptimalSelection
from .. import synthetic
from ..chains import kernel_of
from ..published import published, published_curves
from ..results import Claim, Curve, Panel, Result, Setting, Table
from .fig4a import MODEL_COVARIANCE, MODEL_PRIOR, STATED_PRIOR

N_ROWS, SEED, CANDIDATES, BATCHES, SIZE = 1000, 100, 10, 1000, 10
SIZES = np.linspace(0.01, 0.99, 50) * N_ROWS
SIMULATED, SIMULATED_QUICK = (10, 50, 90, 190, 490, 750, 990), (10, 490)
CANDIDATE_COVARIANCE = np.array([[2e5, -4e4], [-4e4, 1e4]])
CLASSES: dict[str, dict[str, Any]] = {"b": {"flipped": 0.3}, "c": {"shares": (0.01, 0.99)}}
PRINTED_MODES = {"b": (-0.935, -0.416, -1.224, 0.366, -0.832), "c": (0.937, -1.300, 1.024, -1.814, 0.118)}
TITLES = {"a": "bivariate Gaussian", "b": "balanced logistic regression", "c": "imbalanced logistic regression"}
FILES = {"a": "fig1a_bvg_pseudovar", "b": "fig1b_lrb_pseudovar", "c": "fig1c_lrib_pseudovar"}
EXACT_AT_10 = {
    "a": {"SGLD WR": 4.344e10, "SGLD-PS exact": 2.943e10, "SGLD-PS": 2.944e10},
    "b": {
        "SGLD WR": 1.684e5,
        "SGLD-PS exact": 1.036e5,
        "SGLD-PS": 1.045e5,
        "SGLD-CV WR": 804,
        "SGLD-CV-PS exact": 319.6,
        "SGLD-CV-PS Frobenius": 538.1,
        "SGLD-CV-PS": 489.6,
    },
    "c": {
        "SGLD WR": 1.068e4,
        "SGLD-PS exact": 416.1,
        "SGLD-PS": 485.0,
        "SGLD-CV WR": 535.4,
        "SGLD-CV-PS exact": 17.32,
        "SGLD-CV-PS Frobenius": 43.33,
        "SGLD-CV-PS": 37.38,
    },
}
"""An independent calculation of V(10), as run."""
PUBLISHED = {
    "SGLD_WR": "SGLD WR",
    "SGLD_WOR": "SGLD WOR",
    "SGLD-PS_exact": "SGLD-PS exact",
    "SGLD-PS_approx": "SGLD-PS",
    "SGLD-CV_WR": "SGLD-CV WR",
    "SGLD-CV_WOR": "SGLD-CV WOR",
    "SGLD-CV-PS_exact": "SGLD-CV-PS exact",
    "SGLD-CV-PS_approx": "SGLD-CV-PS Frobenius",
}


class Problem(NamedTuple):
    key: str
    posterior: AbstractPosterior
    anchor: Anchor
    candidates: Float[np.ndarray, "c d"]

    def kernel(self, label: str, size: int = SIZE) -> Kernel:
        gradient, subsample = _METHODS[label]
        method = Method(gradient=gradient, subsample=subsample, size=size, step_size=1.0)
        return kernel_of(method, self.posterior, self.anchor)

    @property
    def labels(self) -> list[str]:
        """With a Gaussian's constant Hessians control variates have no noise."""
        return [label for label in _METHODS if self.key != "a" or "CV" not in label]


_METHODS: dict[str, tuple[Any, Any]] = {
    "SGLD WR": (Simple(), Uniform()),
    "SGLD WOR": (Simple(), Uniform(replace=False)),
    "SGLD-PS exact": (Simple(), Optimal()),
    "SGLD-PS": (Simple(), Preferential("gradient", floor=0.0)),
    "SGLD-CV WR": (ControlVariate(), Uniform()),
    "SGLD-CV WOR": (ControlVariate(), Uniform(replace=False)),
    "SGLD-CV-PS exact": (ControlVariate(), Optimal()),
    "SGLD-CV-PS Frobenius": (ControlVariate(), Preferential("frobenius", floor=0.0)),
    "SGLD-CV-PS": (ControlVariate(), Preferential("curvature", floor=0.0)),
    "SGLD-CV2-PS": (ControlVariate(order=2), Preferential("residual")),
}


def as_run(key: str, setting: Setting) -> Result:
    with jax.enable_x64(key == "a"):  # as theirs
        problem = problem_as_run(key)
        exact = exact_at_10(problem)
        sizes = SIMULATED_QUICK if setting.quick else SIMULATED
        simulated = {label: simulated_at(problem, label, sizes, setting) for label in problem.labels}
        errors = {label: standard_errors(problem, label, exact[label], sizes) for label in problem.labels}
    claims = [_equals(label, exact[label], value) for label, value in EXACT_AT_10[key].items()]
    claims += [_agrees("closed form", label, simulated[label], _at(exact[label], label, sizes), errors[label]) for label in exact]
    found = published(setting.folder, FILES[key])
    for name, label in PUBLISHED.items():
        if name in found:
            theirs = np.interp(np.array(sizes) / N_ROWS, *found[name])
            claims.append(_agrees("published table", label, simulated[label], theirs, np.sqrt(2) * errors[label]))
    drawn = [
        *_exact_curves(key, exact),
        *(Curve(key, label, np.array(sizes) / N_ROWS, values, kind="points") for label, values in simulated.items()),
        *published_curves(setting.folder, FILES[key], key, PUBLISHED),
    ]
    remarks = [] if found else ["The published curves were not found, so the simulation was compared with the closed form only."]
    return Result([_panel(key)], drawn, claims, [_table(exact)], remarks)


def as_meant(key: str, setting: Setting) -> Result:
    with jax.enable_x64(key == "a"):
        problem = problem_as_meant(key)
        exact = exact_at_10(problem)
    pairs = [("SGLD-PS", "SGLD WR"), ("SGLD-CV-PS", "SGLD-CV WR"), ("SGLD-CV2-PS", "SGLD-CV-PS")]
    claims = [_reduces(exact, *pair) for pair in pairs if pair[0] in exact]
    return Result([_panel(key)], _exact_curves(key, exact), claims, [_table(exact)])


def problem_as_run(key: str) -> Problem:
    if key == "a":
        x = synthetic.bivariate(SEED, N_ROWS)
        target: AbstractPosterior = gaussian(x, MODEL_COVARIANCE, np.zeros(2), MODEL_PRIOR * np.eye(2))
        mean, covariance = synthetic.conjugate_posterior(x, CANDIDATE_COVARIANCE, STATED_PRIOR)
        anchor = laplace(target, at=target.layout.unravel(jnp.asarray(mean)))
        return Problem(key, target, anchor, _candidates(key, mean, covariance))
    target = _logistic(key)
    anchor = laplace(target, at=target.layout.unravel(jnp.asarray(PRINTED_MODES[key], target.dtype)))
    return Problem(key, target, anchor, _candidates(key, anchor.position, anchor.covariance))


def problem_as_meant(key: str) -> Problem:
    if key == "a":
        x = synthetic.bivariate(SEED, N_ROWS)
        target: AbstractPosterior = gaussian(x, synthetic.COVARIANCE, np.zeros(2), STATED_PRIOR * np.eye(2))
    else:
        target = _logistic(key)
    anchor = laplace(target)
    return Problem(key, target, anchor, _candidates(key, anchor.position, anchor.covariance))


def _logistic(key: str) -> AbstractPosterior:
    return logistic_regression(*synthetic.classification(SEED, 3 * N_ROWS // 2, **CLASSES[key]), prior_variance=10.0)


def _candidates(key: str, mean: Any, covariance: Any) -> Float[np.ndarray, "c d"]:
    """The ten draws of the notebooks, which JAX made with its generator of the time, in the precision that they had."""
    dtype = np.float64 if key == "a" else np.float32
    with jax.threefry_partitionable(False):
        draws = jax.random.multivariate_normal(
            jax.random.PRNGKey(0), jnp.asarray(mean, dtype), jnp.asarray(covariance, dtype), (CANDIDATES,), method="cholesky"
        )
    return np.asarray(draws)


def exact_at_10(problem: Problem) -> dict[str, Float[np.ndarray, " c"]]:
    """V(10) at each candidate."""
    prepared = {label: problem.kernel(label) for label in problem.labels}
    return {
        label: np.array([diagnose.pseudo_variance(kernel, at) for at in problem.candidates]) for label, kernel in prepared.items()
    }


def _at(exact: Float[np.ndarray, " c"], label: str, sizes: Any) -> Float[np.ndarray, " k"]:
    """The mean over candidates of V(n) from that of V(10)."""
    n = np.asarray(sizes, float)
    without = (N_ROWS - n) / (N_ROWS - SIZE) if label.endswith("WOR") else 1.0
    return exact.mean() * SIZE / n * without


def simulated_at(problem: Problem, label: str, sizes: tuple[int, ...], setting: Setting) -> Float[np.ndarray, " k"]:
    values = []
    for done, size in enumerate(sizes):
        of_candidates = _variances(problem.kernel(label, size), jnp.asarray(problem.candidates), new_key(done))
        values.append(float(np.mean(of_candidates)))
        setting.tell(f"{label} by simulation", (done + 1) / len(sizes))
    return np.array(values)


@eqx.filter_jit
def _variances(kernel: Kernel, candidates: Float[Array, "c d"], key: PRNGKeyArray) -> Float[Array, " c"]:
    """The summed variance of 1,000 estimates at each candidate."""

    def at_candidate(given: tuple[Array, Array]) -> Array:
        position, key = given
        supply = kernel.selection.supply(key, BATCHES)

        def estimate(of_batch: Any) -> Array:
            return kernel.estimate(position, kernel.gather(Supply(of_batch, None)).rows).gradient

        return jnp.sum(jnp.var(lax.map(estimate, supply, batch_size=50), axis=0))

    return lax.map(at_candidate, (candidates, jax.random.split(key, len(candidates))))


def standard_errors(
    problem: Problem, label: str, exact: Float[np.ndarray, " c"], sizes: tuple[int, ...]
) -> Float[np.ndarray, " k"]:
    """Of the mean over candidates of simulated variances.

    Without replacement the kurtosis is taken to be that of independent draws, of the rows drawn or of those left out,
    whichever are fewer: the two deviate alike.
    """
    kernel, variances = problem.kernel(label), np.zeros(len(sizes))
    for position, exact_here in zip(problem.candidates, exact, strict=True):
        terms, p = _terms(kernel, position)
        centred = terms - p @ terms
        square = np.sum(centred**2, axis=1)
        trace, fourth, C = p @ square, p @ square**2, (p[:, None] * centred).T @ centred
        for k, n in enumerate(sizes):
            m = min(n, N_ROWS - n) if label.endswith("WOR") else n
            kurtosis = (fourth / trace**2 + (m - 1) * (1 + 2 * np.sum(C**2) / trace**2)) / m
            variances[k] += _at(np.array([exact_here]), label, [n])[0] ** 2 * (kurtosis - 1) / BATCHES
    return np.sqrt(variances) / len(exact)


def _terms(kernel: Kernel, position: np.ndarray) -> tuple[Float[np.ndarray, "N d"], Float[np.ndarray, " N"]]:
    """r_i/p_i of every row, and p_i."""
    target, selection = kernel.posterior, kernel.selection
    compact = kernel.gradient.residuals(jnp.asarray(position, target.dtype), target.data, None, None)
    residuals = np.asarray(target.expand(compact, target.data), np.float64)
    norms = np.linalg.norm(residuals, axis=1)
    best = norms / norms.sum()
    p = best if isinstance(selection, OptimalSelection) else selection.law.probabilities()  # type: ignore[attr-defined]
    return residuals / p[:, None], p


def _equals(label: str, exact: Float[np.ndarray, " c"], value: float) -> Claim:
    found = exact.mean()
    return Claim(f"V(10) of {label}", f"{value:g} ± 1 %", f"{found:.4g}", bool(abs(found / value - 1) < 0.01))


def _agrees(what: str, label: str, simulated: np.ndarray, known: np.ndarray, errors: np.ndarray) -> Claim:
    worst = np.abs((simulated - known) / errors).max()
    return Claim(
        f"the simulation of {label} agrees with the {what}", "|z| ≤ 4.6 at every size", f"{worst:.2f}", bool(worst <= 4.6)
    )


def _reduces(exact: dict[str, np.ndarray], better: str, worse: str) -> Claim:
    ratio = exact[worse].mean() / exact[better].mean()
    return Claim(f"{better} has less noise than {worse}", "ratio > 1", f"{ratio:.3g} times less", bool(ratio > 1), required=False)


def _panel(key: str) -> Panel:
    return Panel(key, TITLES[key], "n / N", "pseudo-variance", log_y=True)


def _exact_curves(key: str, exact: dict[str, np.ndarray]) -> list[Curve]:
    return [Curve(key, label, SIZES / N_ROWS, _at(values, label, SIZES)) for label, values in exact.items()]


def _table(exact: dict[str, np.ndarray]) -> Table:
    least = exact["SGLD WR"].mean()
    rows = [[label, f"{values.mean():.4g}", f"{least / values.mean():.3g}"] for label, values in exact.items()]
    return Table("Pseudo-variance at n = 10, exact", ["method", "V(10)", "SGLD WR over it"], rows)
