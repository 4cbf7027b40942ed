"""Tuning finds the better settings within its budget, from the draws alone."""

import dataclasses

import jax.numpy as jnp
import numpy as np
import pytest

import tallmc
from problems import exact_posterior, linear, logistic, slow_after
from tallmc._core.statistics import ThinnedHistory
from tallmc._engine.loop import advance
from tallmc._engine.run import Run, chain_keys
from tallmc.diagnose import exact_gradients, gaussian_kl, ksd
from tallmc.tuning import Budget, Score, Trial, grid, tune

N_ROWS = 500
POSTERIOR = linear(n_rows=N_ROWS)
MEAN, COVARIANCE = exact_posterior(POSTERIOR)
WIDEST = float(np.linalg.eigvalsh(COVARIANCE)[-1])
BUDGET = Budget(rows=200_000)
CENTRE = tallmc.methods.sgld_cv(step_size=0.5 * WIDEST, batch_size=20)


@pytest.fixture(scope="module")
def tuned():
    return tune(POSTERIOR, CENTRE, budget=BUDGET)


def true_error(method, anchor):
    """KL of a short run's mean and covariance from the posterior's; infinite if it fails."""
    draws = tallmc.sample(POSTERIOR, method, n_draws=3000, anchor=anchor, seed=1)
    if not draws.ok.all():
        return np.inf
    positions = draws.positions.reshape(-1, 2)
    return gaussian_kl(MEAN, COVARIANCE, positions.mean(0), np.cov(positions.T))


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::tallmc.SamplingWarning")
def test_the_chosen_step_is_truly_better_than_the_ends_of_the_grid(tuned):
    by_step = sorted(tuned.candidates, key=lambda candidate: candidate.method.step_size)
    errors = [true_error(candidate.method, tuned.anchor) for candidate in by_step]
    chosen = true_error(tuned.method, tuned.anchor)
    assert chosen < errors[0] / 4
    assert chosen < errors[-1] / 4
    assert chosen < 2 * min(errors)


def test_the_record_tells_what_became_of_every_candidate(tuned):
    first, *others = tuned.candidates
    assert (tuned.method, tuned.ksd) == (first.method, first.ksd)
    assert [candidate.rounds for candidate in tuned.candidates] == [2, 2, 1, 1, 1, 1]
    methods = [candidate.method for candidate in tuned.candidates]
    factors = sorted(method.step_size / CENTRE.step_size for method in methods)
    assert factors == [4.0**k for k in range(-3, 3)]
    for method in methods:
        assert dataclasses.replace(method, step_size=CENTRE.step_size) == CENTRE
    assert all(candidate.ksd > first.ksd for candidate in others)
    assert others[-1].ksd == np.inf
    assert sum(candidate.n_row_evals for candidate in tuned.candidates) == tuned.n_row_evals_tuning


@pytest.mark.slow
def test_survivors_get_more_by_the_factor_that_was_kept():
    factors = np.geomspace(0.01, 1, 9)
    found = tune(POSTERIOR, CENTRE, factors=factors, keep_one_in=3, budget=BUDGET)
    candidates = found.candidates
    assert [candidate.rounds for candidate in candidates] == [2] * 3 + [1] * 6
    once, twice = candidates[-1].n_row_evals, candidates[0].n_row_evals
    assert twice == pytest.approx((1 + 3) * once, rel=0.02)  # a share is spent in whole steps


@pytest.mark.slow
def test_one_round_for_all_is_a_plain_grid():
    heard = []
    options = {"factors": [0.01, 0.1, 1.0], "keep_one_in": 3, "callback": heard.append}
    found = tune(POSTERIOR, CENTRE, budget=BUDGET, **options)
    assert [(of.number, of.of) for of in heard] == [(1, 1)]
    assert heard[0].candidates == found.candidates
    assert len({candidate.n_row_evals for candidate in found.candidates}) == 1


STEPS = [0.05, 0.2, 0.5]
CANDIDATES = {
    "fixed": grid(CENTRE, STEPS),
    "with-passes": grid(tallmc.methods.svrg_ld(0.5 * WIDEST, batch_size=20, every=50), STEPS),
    "two-sizes": grid(CENTRE, STEPS, batch_sizes=[10, 40]),
    "all-rows": grid(tallmc.methods.ula(0.5 * WIDEST), STEPS),
    "adaptive": grid(tallmc.methods.asgld_cv(0.5 * WIDEST, noise_threshold=1e6), STEPS),
    "cyclical": [
        tallmc.methods.cyclical_sgld(step * WIDEST, batch_size=20, cycle=40)
        for step in (0.01, 0.05)
    ],
}


@pytest.mark.parametrize("name", slow_after(1, CANDIDATES))
def test_the_budget_is_spent_and_kept(name):
    budget = BUDGET if name in ("fixed", "with-passes") else Budget(rows=600_000)
    found = tune(POSTERIOR, CANDIDATES[name], budget=budget)
    a_step = 4 * N_ROWS  # rows of one step of all chains, if a step is a pass
    assert found.n_row_evals_tuning <= budget.rows + a_step * len(found.candidates)
    # With few draws, a part of what is set aside for scores is not spent.
    assert found.n_row_evals_tuning >= 0.6 * budget.rows
    if name in ("fixed", "two-sizes"):
        assert 0.95 * budget.rows <= found.n_row_evals_tuning <= budget.rows
    tuned_methods = {id(candidate.method) for candidate in found.candidates}
    assert tuned_methods == {id(method) for method in CANDIDATES[name]}


@pytest.mark.slow
def test_the_same_seed_gives_the_same_answer(tuned):
    again = tune(POSTERIOR, CENTRE, budget=BUDGET)
    assert again.candidates == tuned.candidates
    other = tune(POSTERIOR, CENTRE, budget=BUDGET, anchor=tuned.anchor, seed=1)
    assert other.ksd != tuned.ksd


@pytest.mark.slow
def test_a_budget_of_seconds_lets_every_candidate_run():
    found = tune(POSTERIOR, CENTRE, factors=[0.01, 0.1, 1.0], budget=Budget(seconds=0.6))
    assert all(candidate.n_steps > 1 for candidate in found.candidates)


@pytest.mark.slow
def test_step_sizes_share_preparation_and_compilation():
    method = tallmc.methods.sgld_cv_ps(step_size=0.1 * WIDEST, batch_size=17)
    before = len(advance.programs)
    found = tune(POSTERIOR, method, factors=[0.1, 0.5, 1.0], budget=BUDGET)
    assert len(advance.programs) == before + 1
    once = method.prepare(POSTERIOR, found.anchor).n_row_evals
    # Two passes more for the score: the check of the anchor, and the weights.
    assert found.n_row_evals_preparation == once + 2 * N_ROWS


def test_a_round_continues_the_run_of_the_one_before():
    bound = CENTRE.prepare(POSTERIOR).kernel
    start = jnp.broadcast_to(bound.kernel.rest, (4, 2))
    trial = Trial(CENTRE, bound, start, seed=3, most=1000)
    for rows in (4000, 12_000):
        trial.run_for_rows(rows)
    whole = Run(bound, chain_keys(3, 4), start, burn_in=0, thin=1, n_draws=200)
    whole.run_to(whole.draws)
    np.testing.assert_array_equal(trial.history.kept, whole.positions())
    assert trial.n_row_evals == 16_000


@pytest.mark.parametrize("pieces", [[1000], [1] * 9 + [500, 0, 200, 291]])
def test_a_thinned_history_is_evenly_spaced_whatever_pieces_it_is_given(pieces):
    positions, history = (
        np.random.default_rng(0).normal(size=(2, 1000, 3)),
        ThinnedHistory(60, 2, 3),
    )
    for piece in np.split(positions, np.cumsum(pieces)[:-1], axis=1):
        history.add(piece)
    np.testing.assert_array_equal(history.kept, positions[:, 15::16])


def test_candidates_that_fail_are_out_and_the_rest_is_tuned():
    methods = [dataclasses.replace(CENTRE, step_size=step * WIDEST) for step in (1e3, 0.1, 1e4)]
    found = tune(POSTERIOR, methods, budget=BUDGET, keep_one_in=2)
    assert found.method is methods[1]
    assert [candidate.ksd < np.inf for candidate in found.candidates] == [True, False, False]


def test_when_all_fail_the_error_says_what_to_do():
    message = r"every candidate failed in round 1.*Give smaller step sizes"
    with pytest.raises(tallmc.PreparationError, match=message):
        tune(POSTERIOR, CENTRE, factors=[1e3, 1e4], budget=BUDGET)


@pytest.mark.parametrize("hessian", slow_after(1, [True, False]))
def test_the_answer_does_not_depend_on_the_units_of_the_parameters(hessian):
    # The chains of θ/100 are the same, draw by draw, if the step sizes are scaled too.
    x, y = np.asarray(POSTERIOR.data.x), np.asarray(POSTERIOR.data.y)
    scaled = tallmc.models.linear_regression(100 * x, y, prior_variance=4e-4, noise_variance=1.5)
    factors = [0.02, 0.1, 0.5]
    scores = []
    for posterior, step in ((POSTERIOR, WIDEST), (scaled, 1e-4 * WIDEST)):
        anchor = tallmc.anchor.find_anchor(posterior, hessian=hessian)
        method = tallmc.methods.sgld_cv(step, batch_size=20)
        found = tune(posterior, method, factors=factors, budget=BUDGET, anchor=anchor)
        scores.append([candidate.ksd for candidate in found.candidates])
    np.testing.assert_allclose(*scores, rtol=1e-6)


def test_the_score_is_ksd_where_the_posterior_is_round():
    posterior = logistic(n_rows=30)  # fewer rows than a score would draw
    anchor = tallmc.anchor.find_anchor(posterior)
    C, u = np.asarray(anchor.factor), np.random.default_rng(0).normal(size=(64, 2))
    draws = np.asarray(anchor.position) + u @ C.T
    expected = ksd(u, exact_gradients(posterior, draws) @ C)
    assert Score.around(posterior, anchor)(draws) == pytest.approx(expected, rel=1e-12)


@pytest.mark.slow
@pytest.mark.parametrize("hessian", [True, False])
def test_noise_of_the_score_is_small_beside_what_exact_draws_leave(hessian):
    posterior = logistic(n_rows=5000, dim=3)
    anchor = tallmc.anchor.find_anchor(posterior)
    given = dataclasses.replace(anchor, hessian=None) if not hessian else anchor
    score = Score.around(posterior, given)
    assert score.rows_per_draw == 64
    C = np.asarray(anchor.factor)
    normal = np.asarray(anchor.position) + np.random.default_rng(0).normal(size=(20, 64, 3)) @ C.T
    noisy = np.mean([score(draws) ** 2 for draws in normal])
    whitened = [
        (draws @ np.linalg.inv(C).T, exact_gradients(posterior, draws) @ C) for draws in normal
    ]
    exact = np.mean([ksd(positions, gradients) ** 2 for positions, gradients in whitened])
    if hessian:
        assert noisy == pytest.approx(exact, rel=0.001)
    else:
        assert noisy < 1.5 * exact  # 40 times with simple gradients from as many rows


def test_a_score_of_what_is_not_finite_is_infinite():
    score = Score.around(POSTERIOR, tallmc.anchor.find_anchor(POSTERIOR))
    assert score(np.array([[0.0, np.nan], [0.0, 1.0]])) == np.inf


def test_tuning_refuses_what_makes_no_sense():
    sgld = tallmc.methods.sgld(tallmc.schedule.Polynomial(1e-3, 10.0, 0.5), batch_size=5)
    for message, call in {
        "budget must be in rows or in seconds; got rows=None, seconds=None": Budget,
        "budget must be in rows or in seconds; got rows=1, seconds=1": lambda: Budget(
            rows=1, seconds=1
        ),
        "rows must be an int of at least 1": lambda: Budget(rows=0),
        "seconds must be a finite number and > 0": lambda: Budget(seconds=-1.0),
        "budget must be a Budget": lambda: tune(POSTERIOR, CENTRE, budget=1000),
        "budget must be at least 24576 rows for 6 candidates in 2 rounds; got 100": lambda: tune(
            POSTERIOR, CENTRE, budget=Budget(rows=100)
        ),
        "method must be a Method, or a list of them": lambda: tune(
            POSTERIOR, tallmc.methods.sgld, budget=BUDGET
        ),
        "method must have a number for its step size": lambda: grid(sgld),
        "method must be a Method;": lambda: grid([CENTRE]),
        "factors must be a finite number and > 0": lambda: grid(CENTRE, factors=[1.0, -1.0]),
        "factors and batch_sizes must be left out with a list": lambda: tune(
            POSTERIOR, [CENTRE] * 2, batch_sizes=[1], budget=BUDGET
        ),
        "give at least two candidates; got 1": lambda: tune(
            POSTERIOR, CENTRE, factors=[1.0], budget=BUDGET
        ),
        "keep_one_in must be an int of at least 2": lambda: tune(
            POSTERIOR, CENTRE, keep_one_in=1, budget=BUDGET
        ),
        "chains must be an int of at least 1": lambda: tune(
            POSTERIOR, CENTRE, chains=0, budget=BUDGET
        ),
        "callback must be callable": lambda: tune(POSTERIOR, CENTRE, callback=3, budget=BUDGET),
        "posterior must be a tallmc posterior": lambda: tune(None, CENTRE, budget=BUDGET),
    }.items():
        with pytest.raises(tallmc.InvalidInput, match=message):
            call()
