"""Figure 1: pseudo-variance of gradient estimates against subsample size.

Curves are means over ten draws near the mode. The models have N = 1000 rows: (a) a bivariate
Gaussian, (b) a balanced and (c) an imbalanced logistic regression. `diagnose` gives every curve
exactly:

    with replacement       V(n) = V(1)/n
    without replacement    V(n) ∝ (N − n)/n

Every curve is also simulated, from 1,000 batches at each of seven sizes. The standard error of a
simulated variance is known: for the mean Z of n independent terms with covariance C and fourth
moment m₄ = E‖Y − EY‖⁴,

    E‖Z‖⁴ = [m₄ + (n − 1)((tr C)² + 2 tr C²)]/n³

As run, (a) uses the model in the code of figure 4(a) and draws candidates from a posterior that is
computed with another covariance. (b) and (c) use the Adam modes that the notebooks print, and the
weights of SGLD-CV-PS are ‖∇²f_i‖_F instead of eq. 16.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Array, Float, PRNGKeyArray

from tallmc import diagnose
from tallmc._anchor.anchor import Anchor, find_anchor
from tallmc._core.random import new_key
from tallmc._engine.kernel import BoundKernel
from tallmc.gradient import ControlVariate, Simple
from tallmc.methods.method import Method
from tallmc.models import gaussian, logistic_regression
from tallmc.models.posterior import AbstractPosterior
from tallmc.subsample import Optimal, Preferential, Uniform
from tallmc.subsample.optimal import OptimalSelection
from tallmc.subsample.selection import WithReplacement

from .. import synthetic
from ..chains import kernel_of
from ..published import published, published_curves
from ..results import Claim, Curve, ExperimentSetting, Panel, Result, ResultTable
from .fig4a import MODEL_COVARIANCE, MODEL_PRIOR, STATED_PRIOR

N_ROWS, SEED, CANDIDATES, BATCHES, SIZE = 1000, 100, 10, 1000, 10
SIZES = np.linspace(0.01, 0.99, 50) * N_ROWS
SIMULATED, SIMULATED_QUICK = (10, 50, 90, 190, 490, 750, 990), (10, 490)
CANDIDATE_COVARIANCE = np.array([[2e5, -4e4], [-4e4, 1e4]])
CLASSES: dict[str, dict[str, Any]] = {"b": {"flipped": 0.3}, "c": {"shares": (0.01, 0.99)}}
PRINTED_MODES = {
    "b": (-0.935, -0.416, -1.224, 0.366, -0.832),
    "c": (0.937, -1.300, 1.024, -1.814, 0.118),
}
TITLES = {
    "a": "bivariate Gaussian",
    "b": "balanced logistic regression",
    "c": "imbalanced logistic regression",
}
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
"""V(10) as run, from an independent calculation."""
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


class Figure1Problem(NamedTuple):
    """The posterior and anchor of a panel, and the candidates at which variances are taken."""

    key: str
    posterior: AbstractPosterior
    anchor: Anchor
    candidates: Float[np.ndarray, "c d"]

    def kernel(self, label: str, size: int = SIZE) -> BoundKernel:
        gradient, subsample = _METHODS[label]
        method = Method(gradient=gradient, subsample=subsample, batch_size=size, step_size=1.0)
        return kernel_of(method, self.posterior, self.anchor)

    @property
    def labels(self) -> list[str]:
        """Labels of the methods. (a) has constant Hessians, so control variates have no noise."""
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


def as_run(key: str, setting: ExperimentSetting) -> Result:
    with jax.enable_x64(key == "a"):  # as in the authors' code
        problem = problem_as_run(key)
        exact = exact_at_10(problem)
        sizes = SIMULATED_QUICK if setting.quick else SIMULATED
        simulated = {
            label: simulated_at(problem, label, sizes, setting) for label in problem.labels
        }
        errors = {
            label: standard_errors(problem, label, exact[label], sizes) for label in problem.labels
        }
    claims = [_exact_claim(label, exact[label], value) for label, value in EXACT_AT_10[key].items()]
    claims += [
        _simulation_claim(
            "closed form",
            label,
            simulated[label],
            _scaled_to(exact[label], label, sizes),
            errors[label],
        )
        for label in exact
    ]
    found = published(FILES[key])
    for name, label in PUBLISHED.items():
        if name in found:
            published_values = np.interp(np.array(sizes) / N_ROWS, *found[name])
            claims.append(
                _simulation_claim(
                    "published table",
                    label,
                    simulated[label],
                    published_values,
                    np.sqrt(2) * errors[label],
                )
            )
    drawn = [
        *_exact_curves(key, exact),
        *(
            Curve(key, label, np.array(sizes) / N_ROWS, values, kind="points")
            for label, values in simulated.items()
        ),
        *published_curves(FILES[key], key, PUBLISHED),
    ]
    return Result([_panel(key)], drawn, claims, [_variance_table(exact)])


def as_meant(key: str, setting: ExperimentSetting) -> Result:
    with jax.enable_x64(key == "a"):
        problem = problem_as_meant(key)
        exact = exact_at_10(problem)
    pairs = [("SGLD-PS", "SGLD WR"), ("SGLD-CV-PS", "SGLD-CV WR"), ("SGLD-CV2-PS", "SGLD-CV-PS")]
    claims = [_noise_claim(exact, *pair) for pair in pairs if pair[0] in exact]
    return Result([_panel(key)], _exact_curves(key, exact), claims, [_variance_table(exact)])


def problem_as_run(key: str) -> Figure1Problem:
    if key == "a":
        x = synthetic.bivariate(SEED, N_ROWS)
        target: AbstractPosterior = gaussian(
            x, MODEL_COVARIANCE, np.zeros(2), MODEL_PRIOR * np.eye(2)
        )
        mean, covariance = synthetic.conjugate_posterior(x, CANDIDATE_COVARIANCE, STATED_PRIOR)
        anchor = find_anchor(target, at=target.layout.unravel(jnp.asarray(mean)))
        return Figure1Problem(key, target, anchor, _candidates(key, mean, covariance))
    target = _logistic(key)
    anchor = find_anchor(
        target, at=target.layout.unravel(jnp.asarray(PRINTED_MODES[key], target.dtype))
    )
    return Figure1Problem(key, target, anchor, _candidates(key, anchor.position, anchor.covariance))


def problem_as_meant(key: str) -> Figure1Problem:
    if key == "a":
        x = synthetic.bivariate(SEED, N_ROWS)
        target: AbstractPosterior = gaussian(
            x, synthetic.COVARIANCE, np.zeros(2), STATED_PRIOR * np.eye(2)
        )
    else:
        target = _logistic(key)
    anchor = find_anchor(target)
    return Figure1Problem(key, target, anchor, _candidates(key, anchor.position, anchor.covariance))


def _logistic(key: str) -> AbstractPosterior:
    return logistic_regression(
        *synthetic.classification(SEED, 3 * N_ROWS // 2, **CLASSES[key]), prior_variance=10.0
    )


def _candidates(key: str, mean: Any, covariance: Any) -> Float[np.ndarray, "c d"]:
    """Return the ten draws of the notebooks, in the notebooks' precision.

    JAX drew them with its generator of the time, without `threefry_partitionable`.
    """
    dtype = np.float64 if key == "a" else np.float32
    with jax.threefry_partitionable(False):
        draws = jax.random.multivariate_normal(
            jax.random.PRNGKey(0),
            jnp.asarray(mean, dtype),
            jnp.asarray(covariance, dtype),
            (CANDIDATES,),
            method="cholesky",
        )
    return np.asarray(draws)


def exact_at_10(problem: Figure1Problem) -> dict[str, Float[np.ndarray, " c"]]:
    """Return V(10) per candidate for each method."""
    prepared = {label: problem.kernel(label) for label in problem.labels}
    return {
        label: np.array([diagnose.pseudo_variance(kernel, at) for at in problem.candidates])
        for label, kernel in prepared.items()
    }


def _scaled_to(exact: Float[np.ndarray, " c"], label: str, sizes: Any) -> Float[np.ndarray, " k"]:
    """Return the mean of V(n) over candidates, from V(10) per candidate."""
    n = np.asarray(sizes, float)
    finite_population = (N_ROWS - n) / (N_ROWS - SIZE) if label.endswith("WOR") else 1.0
    return exact.mean() * SIZE / n * finite_population


def simulated_at(
    problem: Figure1Problem, label: str, sizes: tuple[int, ...], setting: ExperimentSetting
) -> Float[np.ndarray, " k"]:
    values = []
    for done, size in enumerate(sizes):
        variances = _variances(
            problem.kernel(label, size), jnp.asarray(problem.candidates), new_key(done)
        )
        values.append(float(np.mean(variances)))
        setting.tell(f"{label} by simulation", (done + 1) / len(sizes))
    return np.array(values)


@eqx.filter_jit
def _variances(
    bound: BoundKernel, candidates: Float[Array, "c d"], key: PRNGKeyArray
) -> Float[Array, " c"]:
    """Return the summed variance of 1,000 estimates at each candidate."""
    kernel, rows = bound.composition, bound.rows

    def at_candidate(given: tuple[Array, Array]) -> Array:
        position, key = given
        drawn = kernel.selection.draw(key, BATCHES)

        def estimate(batch: Any) -> Array:
            return kernel.estimate(position, kernel.selection.gather(batch, rows), rows).gradient

        return jnp.sum(jnp.var(lax.map(estimate, drawn, batch_size=50), axis=0))

    return lax.map(at_candidate, (candidates, jax.random.split(key, len(candidates))))


def standard_errors(
    problem: Figure1Problem, label: str, exact: Float[np.ndarray, " c"], sizes: tuple[int, ...]
) -> Float[np.ndarray, " k"]:
    """Return the standard errors of the mean over candidates of simulated variances.

    Without replacement, the kurtosis is taken to be that of m independent draws. m is the number of
    rows drawn or of rows left out, whichever is smaller: the sum over the rows drawn and the sum
    over the rows left out deviate from their means by the same amount.
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
            variances[k] += (
                _scaled_to(np.array([exact_here]), label, [n])[0] ** 2 * (kurtosis - 1) / BATCHES
            )
    return np.sqrt(variances) / len(exact)


def _terms(
    bound: BoundKernel, position: np.ndarray
) -> tuple[Float[np.ndarray, "N d"], Float[np.ndarray, " N"]]:
    """Return r_i/p_i and p_i of every row."""
    data, selection, gradient = (
        bound.posterior.data,
        bound.composition.selection,
        bound.composition.gradient,
    )
    compact = gradient.residuals(jnp.asarray(position, bound.posterior.dtype), data, None, None)
    residuals = np.asarray(gradient.model.expand(compact, data), np.float64)
    norms = np.linalg.norm(residuals, axis=1)
    match selection:
        case OptimalSelection():
            p = norms / norms.sum()
        case WithReplacement():
            p = selection.stream.probabilities()
        case _:
            p = np.full(len(norms), 1 / len(norms))
    return residuals / p[:, None], p


def _exact_claim(label: str, exact: Float[np.ndarray, " c"], value: float) -> Claim:
    found = exact.mean()
    return Claim(
        f"V(10) of {label}", f"{value:g} ± 1 %", f"{found:.4g}", bool(abs(found / value - 1) < 0.01)
    )


def _simulation_claim(
    what: str, label: str, simulated: np.ndarray, known: np.ndarray, errors: np.ndarray
) -> Claim:
    largest_z = np.abs((simulated - known) / errors).max()
    return Claim(
        f"the simulation of {label} agrees with the {what}",
        "|z| ≤ 4.6 at every size",
        f"{largest_z:.2f}",
        bool(largest_z <= 4.6),
    )


def _noise_claim(exact: dict[str, np.ndarray], better: str, worse: str) -> Claim:
    ratio = exact[worse].mean() / exact[better].mean()
    return Claim(
        f"{better} has less noise than {worse}",
        "ratio > 1",
        f"{ratio:.3g} times less",
        bool(ratio > 1),
        required=False,
    )


def _panel(key: str) -> Panel:
    return Panel(key, TITLES[key], "n / N", "pseudo-variance", log_y=True)


def _exact_curves(key: str, exact: dict[str, np.ndarray]) -> list[Curve]:
    return [
        Curve(key, label, SIZES / N_ROWS, _scaled_to(values, label, SIZES))
        for label, values in exact.items()
    ]


def _variance_table(exact: dict[str, np.ndarray]) -> ResultTable:
    reference = exact["SGLD WR"].mean()
    rows = [
        [label, f"{values.mean():.4g}", f"{reference / values.mean():.3g}"]
        for label, values in exact.items()
    ]
    return ResultTable(
        "Pseudo-variance at n = 10, exact", ["method", "V(10)", "V(10) of SGLD WR / V(10)"], rows
    )
