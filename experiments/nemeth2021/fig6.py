"""Figure 6: test RMSE of Bayesian probabilistic matrix factorisation on MovieLens-100k.

80,000 training ratings, 20,000 held out, rank 20, α = 3, Gamma(1, 5) precisions, 8,000 ratings per
step. Ratings are centred on their training mean, and predictions clipped to [1, 5]. Without the
user's own copy of MovieLens (`--datasets`) the ratings are simulated, with the same shape.

As stated, the step sizes are those of the authors' code. With control variates they are 1e-10 and
1e-12: the chains stay at the point where gradient descent ended, and their "immediately lower RMSE"
is that of this point, to which the paper credits it. As it works, chains with control variates have
the steps of those without. 10⁵ iterations follow 50,000 steps of gradient descent; an iteration of
SGHMC is a trajectory of five steps. Priors count once here; the authors' code scales those of a
minibatch by N/n. Rows are drawn with replacement, which adds a tenth to the variance of the
gradient. The paper has five folds, here is the first (u1), with four chains.
"""

from __future__ import annotations

from pathlib import Path

import jax
import numpy as np

from tallmc._anchor.anchor import find_anchor
from tallmc.contrib.groups import matrix_factorisation
from tallmc.methods import sghmc_cv_trajectories, sghmc_trajectories, sgld, sgld_cv
from tallmc.methods.method import Method

from ..chains import Share
from ..data import Ratings, movielens
from ..predictive_runs import PredictiveRun, predictive_run, root_mean_square_error
from ..results import Claim, Curve, ExperimentSetting, Panel, Result, ResultTable, lower

N_USERS, N_ITEMS, N_RATINGS, N_HELD_OUT, RANK = 943, 1_682, 100_000, 20_000, 20
ITERATIONS, DESCENT_STEPS, EVALUATIONS = 100_000, 50_000, 50
ALPHA, LENGTH, DESCENT = 0.01, 5, 4e-5
STATED = {"SGLD": 4e-5, "SGLD-CV": 1e-10, "SGHMC": 4e-7, "SGHMC-CV": 1e-12}
WORKS = {"SGLD": 4e-5, "SGLD-CV": 4e-5, "SGHMC": 4e-7, "SGHMC-CV": 4e-7}
METHODS = ("SGLD", "SGLD-CV", "SGHMC", "SGHMC-CV")


def simulated(seed: int = 13579) -> Ratings:
    """Return ratings from the model: U, V ~ N(0, 1/5), α = 3, about 3.5, rounded to 1, …, 5.

    Pairs are distinct. Users and items have log-normal shares of the ratings.
    """
    rng = np.random.default_rng(seed)
    users, items = (np.exp(rng.standard_normal(n)) for n in (N_USERS, N_ITEMS))
    shares = np.outer(users, items).ravel()
    # The pairs with the largest log u/share are a draw without replacement (Efraimidis, Spirakis).
    order = np.argpartition(rng.exponential(size=shares.size) / shares, N_RATINGS)[:N_RATINGS]
    pairs = np.column_stack(np.divmod(rng.permutation(order), N_ITEMS))
    factors = [rng.standard_normal((n, RANK)) / np.sqrt(5) for n in (N_USERS, N_ITEMS)]
    products = np.sum(factors[0][pairs[:, 0]] * factors[1][pairs[:, 1]], axis=1)
    noise = rng.standard_normal(N_RATINGS) / np.sqrt(3)
    ratings = np.clip(np.rint(3.5 + products + noise), 1, 5).astype(int)
    table = np.column_stack([pairs, ratings])
    source = "simulated ratings of the shape of MovieLens-100k"
    return Ratings(table[N_HELD_OUT:], table[:N_HELD_OUT], N_USERS, N_ITEMS, source)


def methods(step_sizes: dict[str, float], size: int) -> dict[str, Method]:
    """The four methods with the step sizes of the authors' code (see Figure 5)."""
    h, h_cv = (2 * np.sqrt(step_sizes[name]) for name in ("SGHMC", "SGHMC-CV"))
    return {
        "SGLD": sgld(step_sizes["SGLD"], size),
        "SGLD-CV": sgld_cv(step_sizes["SGLD-CV"], size),
        "SGHMC": sghmc_trajectories(h, size, LENGTH, 2 * ALPHA / h),
        "SGHMC-CV": sghmc_cv_trajectories(h_cv, size, 2 * ALPHA / h_cv, LENGTH),
    }


def run(
    folder: Path | None,
    step_sizes: dict[str, float],
    *,
    iterations: int,
    evaluations: int,
    descent_steps: int,
    chains: int,
    seed: int = 0,
    share: Share = lambda done: None,
) -> tuple[dict[str, PredictiveRun], str]:
    """Run the four methods, and descent first for those with control variates; and the data's name.

    An iteration of SGHMC is a trajectory of five steps.
    """
    data = movielens(folder) or simulated()
    posterior = matrix_factorisation(
        data.train[:, 0],
        data.train[:, 1],
        data.train[:, 2],
        data.n_users,
        data.n_items,
        RANK,
        noise_precision=3.0,
        precisions=(1.0, 5.0),
    )
    assert posterior.predictive is not None, "matrix factorisations predict"
    ratings = data.held_out[:, 2].astype(float)
    test_rows = posterior.predictive.encode((data.held_out[:, :2], ratings))
    scores = {"rmse": root_mean_square_error(ratings, 1, 5)}
    start, size = np.asarray(posterior.init)[None], len(data.train) // 10
    descent = predictive_run(
        posterior,
        sgld(2 * DESCENT, size),
        test_rows,
        scores,
        start,
        steps=max(1, descent_steps // evaluations),
        with_noise=False,
        evaluations=evaluations,
        seed=seed,
    )
    mode = jax.tree.map(np.asarray, posterior.layout.unravel(descent.positions[0]))
    anchor, found = find_anchor(posterior, hessian=False, at=mode), {"descent": descent}
    for number, (name, method) in enumerate(methods(step_sizes, size).items()):
        controlled = name.endswith("-CV")
        found[name] = predictive_run(
            posterior,
            method,
            test_rows,
            scores,
            np.repeat(descent.positions if controlled else start, chains, axis=0),
            steps=max(1, iterations // evaluations) * (LENGTH if "SGHMC" in name else 1),
            anchor=anchor if controlled else None,
            evaluations=evaluations,
            seed=seed,
        )
        share((number + 1) / len(METHODS))
    return found, data.source


def as_stated(setting: ExperimentSetting) -> Result:
    return _result(setting, STATED)


def as_works(setting: ExperimentSetting) -> Result:
    return _result(setting, WORKS)


def _result(setting: ExperimentSetting, step_sizes: dict[str, float]) -> Result:
    iterations = setting.pick(ITERATIONS, 40)
    evaluations = setting.pick(EVALUATIONS, 4)
    found, source = run(
        setting.folder,
        step_sizes,
        iterations=iterations,
        evaluations=evaluations,
        descent_steps=setting.pick(DESCENT_STEPS, 40),
        chains=setting.pick(4, 1),
        share=setting.part(f"four methods, {source_in_short(setting)}"),
    )
    panel = Panel("rmse", source, "iterations", "test RMSE")
    x = np.arange(1, evaluations + 1) * iterations / evaluations
    curves = [Curve("rmse", name, x, found[name].averaged["rmse"].mean(axis=0)) for name in METHODS]
    rows = [
        [
            name,
            f"{found[name].current['rmse'][:, 0].mean():.4f}",
            f"{found[name].current['rmse'][:, -1].mean():.4f}",
            f"{found[name].averaged['rmse'][:, -1].mean():.4f}",
            f"{_moved(found, name):.3g}",
        ]
        for name in METHODS
    ]
    end = float(found["descent"].current["rmse"][0, -1])
    claims = [_finite(found)]
    if step_sizes is STATED:
        gap = max(
            float(np.abs(found[name].current["rmse"][:, -1] - end).max())
            for name in ("SGLD-CV", "SGHMC-CV")
        )
        statement = "with control variates the chains stay where gradient descent ended"
        claims.append(
            Claim(statement, "RMSE within 0.002 of it", f"{gap:.4f}", gap < 0.002, required=True)
        )
    if not setting.quick:
        claims += [
            lower(
                f"control variates lower the RMSE of {name} at once, by their start at the mode",
                found[f"{name}-CV"].current["rmse"][:, 0],
                found[name].current["rmse"][:, 0],
            )
            for name in ("SGLD", "SGHMC")
        ]
        claims += [
            lower(
                f"control variates lower the final RMSE of {name}",
                found[f"{name}-CV"].averaged["rmse"][:, -1],
                found[name].averaged["rmse"][:, -1],
            )
            for name in ("SGLD", "SGHMC")
        ]
    columns = ("method", "first", "last sample", "averaged", "distance moved")
    remarks = [f"The data are {source}.", f"RMSE where gradient descent ended: {end:.4f}."]
    return Result([panel], curves, claims, [ResultTable("test RMSE", columns, rows)], remarks)


def source_in_short(setting: ExperimentSetting) -> str:
    return "MovieLens" if movielens(setting.folder) else "simulated ratings"


def _moved(found: dict[str, PredictiveRun], name: str) -> float:
    """The distance of the last position from the end of the descent."""
    end = np.asarray(found["descent"].positions[0])
    return float(np.linalg.norm(np.asarray(found[name].positions[0]) - end))


def _finite(found: dict[str, PredictiveRun]) -> Claim:
    holds = all(np.isfinite(np.asarray(run.positions)).all() for run in found.values())
    return Claim("all positions are finite", "yes", "yes" if holds else "no", holds)
