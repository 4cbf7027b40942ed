"""The experiments of nemeth-2021: closed forms, data and baselines that the figures rest on."""

import numpy as np
import pytest

import tallmc
from experiments.nemeth2021 import fig1, fig3, review, table2
from experiments.nemeth2021.advi import advi_draws
from experiments.nemeth2021.expected_ksd import expected_squared_ksd, mean_stein_kernel
from tallmc.dynamics import NoseHoover

VARIANCES = (2.0, 1.0)


class TestFigure1:
    def test_exact_draws_have_no_expected_discrepancy_but_their_own(self):
        exact = np.array(VARIANCES)
        assert mean_stein_kernel(exact, exact, np.zeros(2)) == pytest.approx(0, abs=1e-12)
        # k₀(x, x) = ‖s(x)‖² + d, with score s.
        at_one_point = (1 / exact).sum() + 2
        assert mean_stein_kernel(exact, exact, np.ones(2)) == pytest.approx(at_one_point)

    def test_squared_discrepancy_of_the_chain_has_the_expectation_of_the_closed_form(self):
        n_draws, step_size = 400, 1.0
        found = fig1.chains(VARIANCES, step_size, repetitions=60, iterations=n_draws)
        precision = np.linalg.inv(fig1.target_covariance(VARIANCES))
        squares = [tallmc.diagnose.ksd(x, x @ precision) ** 2 for x in found.positions]
        chain_variances = fig1.stationary_variances(VARIANCES, step_size)
        expected = expected_squared_ksd(np.array(VARIANCES), chain_variances, step_size, n_draws)
        error = np.std(squares, ddof=1) / np.sqrt(len(squares))
        assert np.abs(np.mean(squares) - expected) < 4.6 * error

    def test_gradients_have_the_noise_of_the_paper(self):
        found = fig1.chains(VARIANCES, 0.1, repetitions=4, iterations=1000)
        precision = np.linalg.inv(fig1.target_covariance(VARIANCES))
        noise = found.gradients[:, 1:] - found.positions[:, :-1] @ precision
        # 8,000 numbers: 4.6 standard errors of a standard deviation are 3.6 %.
        assert noise.std() == pytest.approx(fig1.NOISE_SD, rel=0.036)

    def test_contours_contain_their_share_of_the_target(self):
        draws = np.random.default_rng(0).multivariate_normal(
            np.zeros(2), fig1.target_covariance(VARIANCES), 20_000
        )
        precision = np.linalg.inv(fig1.target_covariance(VARIANCES))

        def heights(points):
            return np.einsum("ki,ij,kj->k", points, precision, points)

        on_contour = heights(fig1.contour(VARIANCES, 0.95).T)
        np.testing.assert_allclose(on_contour, on_contour[0])
        inside = np.mean(heights(draws) < on_contour[0])
        assert inside == pytest.approx(0.95, abs=4.6 * np.sqrt(0.95 * 0.05 / 20_000))


class TestLogisticRegression:
    def test_coefficients_have_the_scales_of_the_code(self):
        """With sds of 10 some coefficients are large, and the log-loss is low."""
        data = review.simulated(10, 5_000)
        probabilities = 1 / (1 + np.exp(-data.rows @ np.asarray(data.anchor.position)))
        assert np.abs(data.anchor.position).max() > 5
        observed = np.where(data.responses == 1, probabilities, 1 - probabilities)
        assert -np.log(observed).mean() < 0.15

    def test_step_sizes_of_the_code_are_translated_to_momenta_of_variance_one(self):
        methods = review.stated_methods(review.simulated(2, review.N_ROWS // 100))
        # With a hundredth of the rows h is a hundred times as large: 1e-6 for SGHMC, α = 0.01.
        assert methods["SGHMC"].step_size == pytest.approx(2e-3)
        assert methods["SGHMC"].dynamics.friction == pytest.approx(10)
        assert methods["SGHMC"].dynamics.length == review.TRAJECTORY
        assert methods["SGLD"].step_size == pytest.approx(4e-5)
        assert methods["SGNHT"].step_size == pytest.approx(2e-3)
        assert methods["SGNHT"].dynamics == NoseHoover(20.0, momentum_first=True)

    @pytest.mark.slow
    def test_the_variational_fit_has_the_conditional_variances(self):
        data = review.simulated(3, 2000)
        found = advi_draws(data.rows, data.responses, 10.0, steps=1500, n_draws=2000)
        conditional = 1 / np.sqrt(np.diag(np.asarray(data.anchor.hessian)))
        sds = found.positions[0].std(axis=0)
        # The last steps of Adam leave some per cent; 4.6 standard errors of an sd are 7 %.
        np.testing.assert_allclose(sds, conditional, rtol=0.15)

    @pytest.mark.slow
    def test_the_default_is_scored_like_exact_draws(self):
        data = review.simulated(3, 2000)
        run = review.default_run(data, lambda share: None)
        truth = review.TrueMoments(run.positions.mean(axis=(0, 1)), run.positions.std(axis=(0, 1)))
        kept = table2.kept_draws(review.DEFAULT, run, at_mode=False)
        scores = table2.score(data, run, kept, truth)
        assert scores.whitened_ksd == pytest.approx(np.sqrt(2 * 3 / 1000), rel=0.25)
        wide = table2.score(data, run, truth.mean + 1.5 * (kept - truth.mean), truth)
        assert wide.whitened_ksd > 2 * scores.whitened_ksd
        assert wide.sd_error == pytest.approx(0.5, rel=1e-3)


class TestFigure3:
    def test_running_moments_are_those_of_the_draws_after_the_burn_in(self):
        positions = np.random.default_rng(0).normal(3.0, size=(2, 100, 2))
        run = review.SamplerRun(positions, np.linspace(0.1, 10, 100), 0.0)
        times, means, sds = fig3.running_moments(run, 0.1)
        assert times[-1] == 10
        np.testing.assert_allclose(means[-1], positions[:, 10:].mean(axis=(0, 1)))
        np.testing.assert_allclose(sds[-1], positions[:, 10:].std(axis=(0, 1)))
